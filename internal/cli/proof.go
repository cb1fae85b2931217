package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/proof"
)

// observed is a job that agents watch.
type observed interface{ Observe(proof.Observer) }

// lossTeller tells people of each loss as it is seen, once for each node, probe and window.
type lossTeller struct {
	w    io.Writer
	mu   sync.Mutex
	told map[string]bool
}

func (t *lossTeller) Loss(l v1alpha1.Loss) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := l.Node + " " + l.Probe + " " + l.Start.UTC().String()
	if t.told[key] {
		return
	}
	if t.told == nil {
		t.told = map[string]bool{}
	}
	t.told[key] = true
	fmt.Fprintf(t.w, "lost: %s\n", proof.Describe(&l))
}

func (*lossTeller) Sample(proof.Sample) {}

// goBackOnLoss rolls back what was stopped by the loss budget, if the Migration says so, and returns why.
func (a *app) goBackOnLoss(ctx context.Context, c *connection, j job, err error) error {
	var loss *proof.LossError
	of := j.about()
	if !errors.As(err, &loss) || of.common.Proof.OnLoss != v1alpha1.OnLossRollback {
		return err
	}
	fmt.Fprintf(a.err, "%v\nrolling back, as spec.proof.onLoss says\n", loss)
	if back := a.run(ctx, c, j, j.Rollback); back != nil {
		return errors.Join(err, fmt.Errorf("then rolling back: %w", back))
	}
	return &HintedError{
		Err:  fmt.Errorf("%s, since %w", of.wentBack, loss),
		Hint: "mend what the probes met with, then replumb apply -f FILE begins again",
	}
}

// proofLines say what agents have seen.
func proofLines(w io.Writer, p *v1alpha1.ProofStatus) {
	if p == nil {
		return
	}
	fmt.Fprintf(w, "probes on %s: %s requests, %s failed\n",
		english.Plural(p.Nodes, "node", ""), humanize.Comma(p.Sent), humanize.Comma(p.Failed))
	for _, s := range p.Silent {
		fmt.Fprintf(w, "not probed: %s\n", s)
	}
	for i := range p.Losses {
		fmt.Fprintf(w, "lost: %s\n", proof.Describe(&p.Losses[i]))
	}
}
