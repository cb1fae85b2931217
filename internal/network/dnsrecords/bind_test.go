package dnsrecords

import (
	"context"
	"sync"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// notebook remembers in memory.
type notebook struct {
	mu sync.Mutex
	of map[string]v1alpha1.RecordStatus
	// fails, if set, is asked before anything is written down.
	fails func() error
}

func (n *notebook) Recall(_ context.Context, name string, typ v1alpha1.RecordType) (*v1alpha1.RecordStatus, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s, ok := n.of[name+string(typ)]; ok {
		return s.DeepCopy(), nil
	}
	return nil, nil
}

func (n *notebook) Change(name string, _ v1alpha1.RecordType) engine.Change {
	return engine.Change{Verb: "note", Object: name}
}

func (n *notebook) Remember(_ context.Context, s v1alpha1.RecordStatus) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails != nil {
		if err := n.fails(); err != nil {
			return err
		}
	}
	if n.of == nil {
		n.of = map[string]v1alpha1.RecordStatus{}
	}
	n.of[s.Name+string(s.Type)] = *s.DeepCopy()
	return nil
}
