package migration

import (
	"fmt"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
)

// Description is what is true of every migration of a kind, whatever the cluster.
type Description struct {
	Field string
	// Title is its heading in docs/findings.md; empty for the first, which the page is named for.
	Title  string
	Words  Words
	Set    SetPlace
	Report func(*v1alpha1.Migration) Report
	// Targets are the ranges that one leads to, for the configuration of a mirror; nil is none.
	Targets func(*v1alpha1.MigrationSpec) Targets
	Checks  []findings.Description
	// Apply are the names of the phases of apply, Phases those of all commands, each in order.
	Apply, Phases []string
	// Outlines have the phases of each command with their titles, one for each kind of cluster.
	Outlines []Outline
	// Command is its name where commands are about kinds, Does what its roles are for.
	Command, Does string
	// Roles are what users need, by purpose. Files under deploy/ grant exactly these.
	Roles access.Roles
	// Examples is the folder of its Migrations under examples/.
	Examples string
}

// Words are what people read of a kind wherever there is no job of it.
type Words struct {
	// Counted is what the status counts, in the plural.
	Counted string
	// ByMoves says that a step moves one of what is counted; otherwise progress counts steps.
	ByMoves bool
	Return  string
	// ApplyFirst says why spec.desired cannot be Finished before it was Applied; empty if it can.
	ApplyFirst string
}

// SetPlace is where a kind stands among several Migrations that move as one set.
type SetPlace struct {
	Order int
	Moves string
	Alone string
	Takes func(*v1alpha1.MigrationSpec) []TakenRanges
}

// TakenRanges are those of one field.
type TakenRanges struct {
	Field  string
	Ranges []string
	// Named says that they are of another network, which the Migration takes no address of.
	Named bool
	// Holds says that they may well be in a network that another Migration names.
	Holds bool
}

// Targets are the ranges that a Migration leads to.
type Targets struct{ Services, Pods, Nodes []string }

// Report is what a report says of one Migration of a kind.
type Report struct {
	Kind     string
	From, To []string
	// Subject and Did make the sentence of what happened: "The pods" "moved".
	Subject, Did string
	// Counts has the sentence count what moved in place of that.
	Counts   bool
	Extended bool
}

// About is what is true of a job before the cluster is looked at.
type About struct {
	Name      string
	Migration *v1alpha1.Migration
	// Common is what all kinds have, defaulted.
	Common v1alpha1.MigrationSpec
	Phases []string
	// GoBack is the question before a rollback, the others what holds once a command is over.
	GoBack, Applied, WentBack, Finished string
	Return                              string
	// Rights is what replumb rbac calls the roles that the user needs.
	Rights string
}

// Inspection is what a look at the cluster found.
type Inspection struct {
	Findings           findings.Findings
	Whole, Outstanding *engine.Plan
	Details
}

// Details are what a kind has to say of its plan beside phases and findings.
type Details struct {
	Summary string
	Stays   []Stay
	// Services, and Late ones made in the target range since, are for programs; nil where none
	// move.
	Services, Late any
	Text           []TextBlock
}

// Stay is an object that a migration leaves alone.
type Stay struct {
	Service string `json:"service"`
	Reason  string `json:"reason"`
}

// TextBlock is a part of a text for people: a table, lines of one kind, or both in this order.
type TextBlock struct {
	// Head, if set, is the first row of a table.
	Head []string
	Rows [][]string
	// Settled says of a row that it has got where it shall, and can give way to others.
	Settled func(row []string) bool
	Lines   []string
	All     bool
}

// Holding names what holds an old range.
func Holding(holds []string) (b TextBlock) {
	for _, h := range holds {
		b.Lines = append(b.Lines, "holds the old range: "+h)
	}
	return b
}

// Unproven says what a plan without agents leaves open.
func Unproven(moves string) TextBlock {
	return TextBlock{Lines: []string{
		"not proven: without agents on the nodes nothing is probed while " + moves + " move (spec.proof)",
	}}
}

// Stopped is the result of an apply that was to stop after a phase.
func Stopped(until, format string, args ...any) ApplyResult {
	return ApplyResult{Text: []TextBlock{{Lines: []string{
		"stopped after phase " + until + ", as asked: " + fmt.Sprintf(format, args...),
	}}}}
}

// ApplyResult tells people where apply got to; Hint is empty if it stopped on the way.
type ApplyResult struct {
	Text []TextBlock
	Hint string
}

// FinishPreview is the question before finish, and what becomes final, a line each.
type FinishPreview struct {
	Question string
	Finals   []string
}

// StatusDocument is where everything stands.
type StatusDocument struct {
	Body    any
	Pending bool
	Counts  v1alpha1.Counts
	Summary string
	Text    []TextBlock
}
