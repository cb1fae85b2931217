package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// goBackOnLoss rolls back what was stopped by the loss budget, if the Migration says so, and returns why.
func (a *app) goBackOnLoss(ctx context.Context, c *connection, j migrations.Job, err error) error {
	var loss *lossguard.LossError
	of := j.About()
	if !errors.As(err, &loss) || of.Common.Proof.OnLoss != v1alpha1.OnLossRollback {
		return err
	}
	fmt.Fprintf(a.err, "%v\nrolling back, as spec.proof.onLoss says\n", loss)
	if back := a.run(ctx, c, j, "rollback", j.Rollback); back != nil {
		return errors.Join(err, fmt.Errorf("then rolling back: %w", back))
	}
	return &fault.Hinted{
		Err:  fmt.Errorf("%s, since %w", of.WentBack, loss),
		Hint: "repair what the probes met with, then replumb apply -f FILE begins again",
	}
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
