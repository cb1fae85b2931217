package bridge

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

const (
	// pairsPerList bounds selectors: proxies take lines of 8 KB, and names have up to 63 bytes.
	pairsPerList = 16
	// listLimit bounds a list, which is shared by steps and cut off by none.
	listLimit = time.Minute
)

// Endpoints compares the endpoints of Services, with one list for all that ask meanwhile: a
// consistent list waits for the API server's cache, which takes longer than anything else in a
// step.
type Endpoints struct {
	Client client.Reader

	mu sync.Mutex
	// rounds are the lists to come; busy says that they are being made.
	rounds []*round
	busy   bool
}

type round struct {
	services []types.NamespacedName
	done     chan struct{}
	// slices and err are there once done is closed.
	slices []discoveryv1.EndpointSlice
	err    error
}

// Same compares ready endpoints of two Services of a namespace. Both may have none.
func (e *Endpoints) Same(ctx context.Context, a, b types.NamespacedName) error {
	r := e.join(ctx, a, b)
	select {
	case <-ctx.Done():
		return fmt.Errorf("endpoints of services %s and %s: %w", a, b, ctx.Err())
	case <-r.done:
	}
	if r.err != nil {
		return fmt.Errorf("endpoints of services %s and %s: %w", a, b, r.err)
	}
	ofA, ofB := readyEndpoints(r.slices, a), readyEndpoints(r.slices, b)
	if !slices.Equal(ofA, ofB) {
		return engine.NotYet("service %s has %d ready endpoints that are not those of %s (%d)", b, len(ofB), a, len(ofA))
	}
	return nil
}

// join adds a pair to a list that has not begun.
func (e *Endpoints) join(ctx context.Context, a, b types.NamespacedName) *round {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := len(e.rounds) - 1
	if last < 0 || len(e.rounds[last].services) >= 2*pairsPerList {
		e.rounds, last = append(e.rounds, &round{done: make(chan struct{})}), last+1
	}
	r := e.rounds[last]
	r.services = append(r.services, a, b)
	if !e.busy {
		e.busy = true
		go e.work(context.WithoutCancel(ctx))
	}
	return r
}

func (e *Endpoints) work(ctx context.Context) {
	for {
		e.mu.Lock()
		if len(e.rounds) == 0 {
			e.busy = false
			e.mu.Unlock()
			return
		}
		r := e.rounds[0]
		e.rounds = e.rounds[1:]
		e.mu.Unlock()
		r.list(ctx, e.Client)
	}
}

func (r *round) list(ctx context.Context, c client.Reader) {
	defer close(r.done)
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	var names []string
	within := client.InNamespace(r.services[0].Namespace)
	for _, s := range r.services {
		names = append(names, s.Name)
		if s.Namespace != string(within) {
			within = ""
		}
	}
	of, err := labels.NewRequirement(discoveryv1.LabelServiceName, selection.In, names)
	if err != nil {
		r.err = err
		return
	}
	all := &discoveryv1.EndpointSliceList{}
	r.err = c.List(ctx, all, within, client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*of)})
	r.slices = all.Items
}
