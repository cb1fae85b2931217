package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// hops are what another client who watches Services sees of them: how long each was of type ExternalName.
type hops struct {
	mu    sync.Mutex
	since map[string]time.Time
	seen  []hop
}

type hop struct {
	service string
	began   time.Time
	took    time.Duration
}

// watchHops watches all Services until ctx ends, from wherever it was when a watch breaks off.
func watchHops(ctx context.Context, client kubernetes.Interface) *hops {
	h := &hops{since: map[string]time.Time{}}
	go func() {
		for ctx.Err() == nil {
			w, err := client.CoreV1().Services("").Watch(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for e := range w.ResultChan() {
				if s, ok := e.Object.(*corev1.Service); ok {
					h.see(e.Type, s, time.Now())
				}
			}
		}
	}()
	return h
}

func (h *hops) see(what watch.EventType, s *corev1.Service, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := s.Namespace + "/" + s.Name
	began, away := h.since[key]
	switch {
	case what == watch.Deleted:
		delete(h.since, key)
	case s.Spec.Type == corev1.ServiceTypeExternalName && !away:
		h.since[key] = at
	case s.Spec.Type != corev1.ServiceTypeExternalName && away:
		h.seen = append(h.seen, hop{key, began, at.Sub(began)})
		delete(h.since, key)
	}
}

// report tells what was seen since it was asked last.
func (h *hops) report(t *testing.T, during string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.seen, func(a, b hop) int { return a.began.Compare(b.began) })
	var all []string
	var longest time.Duration
	for _, s := range h.seen {
		longest = max(longest, s.took)
		all = append(all, fmt.Sprintf("%s %s %s", s.began.Format("15:04:05.000"), s.service, s.took.Round(100*time.Microsecond)))
	}
	t.Logf(
		"%s: watchers saw %d Services of type ExternalName, the longest for %s:\n%s",
		during,
		len(h.seen),
		longest,
		strings.Join(all, "\n"),
	)
	h.seen = nil
}
