package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// strandings are the Services that the commands of a job could give no address.
type strandings struct {
	mu  sync.Mutex
	all map[types.UID]hop.Stranded
}

func (s *strandings) add(uid types.UID, by hop.Stranded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[types.UID]hop.Stranded{}
	}
	s.all[uid] = by
}

func (s *strandings) of(uid types.UID) (by hop.Stranded, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by, is = s.all[uid]
	return by, is
}

// mark takes Services that got no address out of what is to move.
func (s *strandings) mark(found *services.Inventory) {
	for _, e := range found.All() {
		if by, is := s.of(e.Service.UID); is && e.Position == services.InTransit {
			e.Reason = services.Reason{Kind: services.Stranded, Text: by.Why}
		}
	}
}

// strandedError ends a command in which everything else was done.
func (s *strandings) error(all []*services.Entry) error {
	var lines, byHand []string
	for _, e := range all {
		lines = append(lines, fmt.Sprintf("service %s %s; clients get to it by its bridge, service %s", e.Key(), e.Reason, e.BridgeKey()))
		by, _ := s.of(e.Service.UID)
		byHand = append(byHand, by.ByHand)
	}
	if len(lines) == 0 {
		return nil
	}
	return &fault.Hinted{
		Err: errors.New(strings.Join(lines, "; ")),
		Hint: "except the Service from what refuses it, and run the same command again; or write its address as a user who may, and run the same command again: " +
			strings.Join(slices.Compact(byHand), "; "),
	}
}

// strandedStep ends a command that would take away what serves such Services.
func strandedStep(p *Planner) []engine.Group {
	all := p.Inventory.Stranded()
	if len(all) == 0 {
		return nil
	}
	return engine.InOrder(&engine.Wait{
		Name: "stranded", About: "Keep the bridges of Services that got no address", Again: true,
		For: func(context.Context) error { return p.Stranded.error(all) },
	})
}

// Amiss says which Services apply could not give an address.
func (p *Planner) Amiss() error {
	if p.Stranded == nil {
		return nil
	}
	return p.Stranded.error(p.Inventory.Stranded())
}
