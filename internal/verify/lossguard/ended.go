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
	// blameFor is how long it is looked whether an agent has ended: kubelets take about a second to tell.
	blameFor   = 3 * time.Second
	blameEvery = 250 * time.Millisecond
	// blameBefore is how long before the first loss an agent may have ended: clocks differ, and kubelets tell whole seconds.
	blameBefore = 5 * time.Second
)

// EndedError says that an agent ended while others called it. What they lost by that says nothing of the network, in either sense.
type EndedError struct {
	// Who ended, and how.
	Who  string
	loss *LossError
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("an agent ended that others called, so that what they lost says nothing of what clients see: %s; %v", e.Who, e.loss)
}

// Advice is what to do about it.
func (e *EndedError) Advice() string {
	return "when it is known why it ended (kubectl -n " + v1alpha1.SystemNamespace + " logs POD --previous), run the same command again"
}

// Blame returns the error that a run ends with which was stopped by a loss: that loss, unless all of it can be laid to an agent that ended
// while it was called.
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

// hungUp reports whether all that was lost was closed by the other side, and the other side were agents.
func (e *LossError) hungUp() bool {
	return len(e.Losses) > 0 && !slices.ContainsFunc(e.Losses, func(l v1alpha1.Loss) bool {
		_, name, _ := strings.Cut(l.Probe, "/")
		return name == v1alpha1.ProbeDNS || !slices.Contains(v1alpha1.OwnProbes(), name) ||
			!slices.ContainsFunc([]probe.Class{probe.ConnectRefused, probe.Reset, probe.Closed}, func(c probe.Class) bool {
				return strings.HasPrefix(l.Error, string(c)+":")
			})
	})
}
