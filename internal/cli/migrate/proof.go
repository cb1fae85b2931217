package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// judge is a job that knows better what was lost than who saw it.
type judge interface {
	Blame(ctx context.Context, loss *lossguard.LossError) error
}

// goBackOnLoss rolls back what was stopped by the loss budget, if the Migration says so, and returns why.
func (a *action) goBackOnLoss(ctx context.Context, c *command.Connection, j job, err error) error {
	var loss *lossguard.LossError
	of := j.about()
	if !errors.As(err, &loss) || of.common.Proof.OnLoss != v1alpha1.OnLossRollback {
		return err
	}
	fmt.Fprintf(a.Err, "%v\nrolling back, as spec.proof.onLoss says\n", loss)
	if back := a.run(ctx, c, j, "rollback", j.Rollback); back != nil {
		return errors.Join(err, fmt.Errorf("then rolling back: %w", back))
	}
	return &fault.Hinted{
		Err:  fmt.Errorf("%s, since %w", of.wentBack, loss),
		Hint: "repair what the probes met with, then replumb apply -f FILE begins again",
	}
}

// unproven says what a plan without agents leaves open.
func unproven(w io.Writer, what string) {
	fmt.Fprintf(w, "not proven: without agents on the nodes nothing is probed while %s move (spec.proof)\n", what)
}

// proofLines say what agents have seen.
func proofLines(w io.Writer, p *v1alpha1.ProofStatus, rows int) {
	if p == nil {
		return
	}
	fmt.Fprintf(
		w,
		"probes on %s: %s requests, %s failed, %s late, %s not measured\n",
		english.Plural(
			p.Nodes,
			"node",
			"",
		),
		humanize.Comma(p.Sent),
		humanize.Comma(p.Failed),
		humanize.Comma(p.Late),
		humanize.Comma(p.NotMeasured),
	)
	bounded(w, rows, p.Silent, func(s string) { fmt.Fprintf(w, "not probed: %s\n", s) })
	bounded(w, rows, p.Losses, func(l v1alpha1.Loss) { fmt.Fprintf(w, "lost: %s\n", printable.Line(lossguard.Describe(&l))) })
}
