package agent

import (
	"context"
	"sync"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// servers is what the node sees of API servers, for gates whose operator's machine cannot reach
// them.
type servers struct {
	mu   sync.Mutex
	seen []v1alpha1.APIServerReport
}

func (s *servers) follow(ctx context.Context, look func(context.Context) []v1alpha1.APIServerReport, every func() time.Duration) {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		}
		seen := look(ctx)
		if ctx.Err() != nil { // a look that was cut off says nothing
			return
		}
		s.mu.Lock()
		s.seen = seen
		s.mu.Unlock()
		due.Reset(every())
	}
}

func (s *servers) report() []v1alpha1.APIServerReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}
