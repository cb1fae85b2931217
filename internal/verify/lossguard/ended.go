package lossguard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
)

const (
	// blameFor is how long to look for an agent's end: kubelets take about a second to tell.
	blameFor   = 3 * time.Second
	blameEvery = 250 * time.Millisecond
	// blameBefore covers differences of clocks, and whole seconds of kubelets.
	blameBefore = 5 * time.Second
)

// EndedError says that an agent ended while others called it, which proves nothing.
type EndedError struct {
	// Who ended, and how.
	Who  string
	loss *LossError
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("an agent ended that others called, so that what they lost says nothing of what clients see: %s; %v", e.Who, e.loss)
}

func (e *EndedError) Advice() string {
	return "when it is known why it ended (kubectl -n " + v1alpha1.SystemNamespace + " logs POD --previous), run the same command again"
}

// Blame returns the loss that stopped a run, or an EndedError if an agent's end explains all of it.
func (w *Watch) Blame(ctx context.Context, loss *LossError) error {
	by := w.diagnosed()
	if by == nil || !loss.hungUp() {
		return loss
	}
	first := slices.MinFunc(loss.Losses, func(a, b v1alpha1.Loss) int { return a.Start.Compare(b.Start.Time) })
	since, who := first.Start.Add(-blameBefore), ""
	_ = wait.PollUntilContextTimeout(ctx, blameEvery, blameFor, true, func(ctx context.Context) (bool, error) {
		who = by.Ended(ctx, since)
		return who != "", nil
	})
	if who == "" {
		return loss
	}
	return &EndedError{Who: who, loss: loss}
}

// hungUp reports whether all losses were connections that agents closed.
func (e *LossError) hungUp() bool {
	return len(e.Losses) > 0 && !slices.ContainsFunc(e.Losses, func(l v1alpha1.Loss) bool {
		_, name, _ := strings.Cut(l.Probe, "/")
		return name == v1alpha1.ProbeDNS || !slices.Contains(v1alpha1.OwnProbes(), name) ||
			!slices.ContainsFunc([]probe.Class{probe.ConnectRefused, probe.Reset, probe.Closed}, func(c probe.Class) bool {
				return strings.HasPrefix(l.Error, string(c)+":")
			})
	})
}
