package hop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Progress is a Service as the inventory found it and each write of the run changed it. The steps
// of one Service run one after the other.
type Progress struct {
	services.Entry
	answers

	began   time.Time
	skipped string
	// given is what etcd has of the Service since the target's IPAddress is its own; nil, if it is
	// not.
	given *stored.Known
	// stranded says why the Service got no address, remark what is to be said of how it arrived.
	stranded, remark string
	// refusedSince is when what may yet let it arrive first did not.
	refusedSince time.Time
}

// answers are a Service and its bridge as last answered; nil if unknown. They are good for writes
// that carry their resourceVersion, and for a proof of the write they answer.
type answers struct{ service, bridge *corev1.Service }

// Tracker has the progress of each Service for all steps of a run. The zero value is ready.
type Tracker struct {
	mu  sync.Mutex
	all map[*services.Entry]*Progress
}

// Of an entry of the inventory, which is not changed.
func (t *Tracker) Of(e *services.Entry) *Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.all[e]
	if p == nil {
		p = &Progress{Entry: *e}
		p.Reserved = maps.Clone(e.Reserved)
		if t.all == nil {
			t.all = map[*services.Entry]*Progress{}
		}
		t.all[e] = p
	}
	return p
}

func (p *Progress) recordHold(h *bridge.Hold) {
	if p.Reserved == nil {
		p.Reserved = map[netip.Addr]services.Reservation{}
	}
	r := services.Reservation{UID: h.UID, Original: h.Original, Old: h.Old, Target: h.New, Heading: h.Heading, Since: p.Reserved[h.Address].Since}
	if h.Service != nil {
		r.Form = h.Service.Form
	}
	p.Reserved[h.Address] = r
}

// noteOwned notes the spec that a Service had before any of it was replumb's.
func (p *Progress) noteOwned(svc *corev1.Service) (err error) {
	if p.Original != "" {
		return nil
	}
	if p.Original, err = services.OriginalOf(&p.AsOwned(svc).Spec); err != nil {
		return fmt.Errorf("service %s: %w", p.Key(), err)
	}
	return nil
}

// ownsAddress reports whether a killed run has made the address the Service's own, before its
// second write to etcd.
func (p *Progress) ownsAddress(err error) bool {
	var taken *bridge.TakenError
	return !p.Hops() && errors.As(err, &taken) && taken.By == "services "+p.Key().String()
}

// reserveNew reserves the target, or the next free address as often as another has it.
func (p *Progress) reserveNew(ctx context.Context, c client.Client, migration string, pool *cidr.Allocator) error {
	for {
		if p.New.IsValid() {
			h := p.Reservation(migration, p.New)
			err := h.Create(ctx, c)
			if err == nil {
				p.recordHold(h)
			}
			if p.ownsAddress(err) {
				return nil
			}
			if err == nil || !IsTaken(err) {
				return err
			}
		}
		next, err := pool.Lowest()
		if err != nil {
			return fmt.Errorf("service %s: %w", p.Key(), err)
		}
		p.New = next
	}
}

// IsTaken reports whether an address could not be reserved since another has it.
func IsTaken(err error) bool { return errors.As(err, new(*bridge.TakenError)) }

func noProof(context.Context) error { return nil }
