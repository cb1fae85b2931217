package command

import (
	"encoding/json"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
)

// ReportPart is what one cluster, or one migration, has in a report of several.
type ReportPart struct {
	// Summary is one sentence, Report all that replumb report says; both are empty before the
	// start.
	Summary  string          `json:"summary,omitempty"`
	Report   json.RawMessage `json:"report,omitempty"`
	Error    string          `json:"error,omitempty"`
	ExitCode int             `json:"exitCode"`

	Sent        int64 `json:"-"`
	Failed      int64 `json:"-"`
	Late        int64 `json:"-"`
	NotMeasured int64 `json:"-"`
}

// Summarize says in one sentence how many have begun, and how many requests were sent and lost.
func Summarize(parts []ReportPart, of string) string {
	var sent, failed, late, notMeasured int64
	begun, unknown := 0, 0
	for _, row := range parts {
		sent, failed, late, notMeasured = sent+row.Sent, failed+row.Failed, late+row.Late, notMeasured+row.NotMeasured
		if row.Summary != "" {
			begun++
		}
		if row.Error != "" {
			unknown++
		}
	}
	text := fmt.Sprintf("begun in %d of %s", begun, english.Plural(len(parts), of, ""))
	if unknown > 0 {
		text += fmt.Sprintf(", not known of %d", unknown)
	}
	if sent+notMeasured == 0 {
		return text + "; no requests were counted"
	}
	text += fmt.Sprintf("; %s of %s requests failed", humanize.Comma(failed), humanize.Comma(sent))
	if late > 0 {
		text += fmt.Sprintf(", %s answered late", humanize.Comma(late))
	}
	if notMeasured > 0 {
		text += fmt.Sprintf(", %s more not measured", humanize.Comma(notMeasured))
	}
	return text
}

// LateFlag declares --late of rollback, of one migration and of a fleet.
func LateFlag(cmd *cobra.Command, choice *string) {
	cmd.Flags().StringVar(choice, "late", "",
		"what becomes of Services made in the new range since the migration began: Move or Keep (spec.serviceCIDR)")
	Complete(cmd, "late", "Move", "Keep")
}

// Complete has shells complete the value of a flag from a list.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	// It fails only for a flag that the command has not declared.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}
