package tier

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
)

// Request is what a lookup is asked. docs/hooks.md shows one.
type Request struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Tiers      []string   `json:"tiers"`
	Services   []Question `json:"services"`
}

// Question is one Service that a lookup is asked about.
type Question struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Answer is what a lookup says: tiers by namespace/name.
type Answer struct {
	Tiers map[string]string `json:"tiers"`
}

// Lookup asks for all Services in one request. Unknown ones are missing from the answer, and others
// in it are ignored. Errors are of the call (*callout.Error) or the answer.
func Lookup(
	ctx context.Context, action v1alpha1.TierLookup, services []*corev1.Service, tiers []string,
) (map[types.NamespacedName]string, error) {
	if len(services) == 0 {
		return map[types.NamespacedName]string{}, nil
	}
	request := Request{APIVersion: v1alpha1.GroupVersion.String(), Kind: "TierLookupRequest", Tiers: tiers}
	asked := map[types.NamespacedName]bool{}
	for _, svc := range services {
		asked[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = true
		request.Services = append(request.Services, question(svc))
	}
	slices.SortFunc(request.Services, func(a, b Question) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	var answer Answer
	if err := callout.Call(ctx, action.Action, request, &answer); err != nil {
		return nil, fmt.Errorf("looking up tiers: %w", err)
	}
	if answer.Tiers == nil {
		return nil, fmt.Errorf("looking up tiers: %s: %w", callout.Name(action.Action), errors.New(`the answer has no "tiers"`))
	}
	out := map[types.NamespacedName]string{}
	for text, tier := range answer.Tiers {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok {
			return nil, fmt.Errorf(
				"looking up tiers: %s: the answer has %q, which is not namespace/name",
				callout.Name(action.Action), text,
			)
		}
		if key := (types.NamespacedName{Namespace: namespace, Name: name}); asked[key] && tier != "" {
			out[key] = tier
		}
	}
	return out, nil
}

// question drops replumb's notes, which change during a move, and kubectl's copy.
func question(svc *corev1.Service) Question {
	q := Question{Namespace: svc.Namespace, Name: svc.Name, Labels: map[string]string{}, Annotations: map[string]string{}}
	for k, v := range svc.Labels {
		q.Labels[k] = v
	}
	for k, v := range svc.Annotations {
		if !strings.HasPrefix(k, v1alpha1.GroupVersion.Group+"/") && k != corev1.LastAppliedConfigAnnotation {
			q.Annotations[k] = v
		}
	}
	return q
}

const remember = time.Hour

// Cache remembers answers for an hour, but for unknown Services and those with changed labels or
// annotations. Concurrent use is serialized.
type Cache struct {
	now func() time.Time
	// turn holds a token while someone asks, so that others can give up waiting.
	turn    chan struct{}
	entries map[[sha256.Size]byte]entry
}

type entry struct {
	tier  string
	until time.Time
}

// NewCache makes an empty Cache. Without now it goes by the machine's clock.
func NewCache(now func() time.Time) *Cache {
	if now == nil {
		now = time.Now
	}
	return &Cache{now: now, turn: make(chan struct{}, 1), entries: map[[sha256.Size]byte]entry{}}
}

// Lookup is the function Lookup for those Services whose tier is not remembered.
func (c *Cache) Lookup(
	ctx context.Context, action v1alpha1.TierLookup, services []*corev1.Service, tiers []string,
) (map[types.NamespacedName]string, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("looking up tiers: %w", context.Cause(ctx))
	}
	now := c.now()
	out := map[types.NamespacedName]string{}
	keys := map[types.NamespacedName][sha256.Size]byte{}
	var ask []*corev1.Service
	for _, svc := range services {
		name := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
		key, err := fingerprint(action, svc, tiers)
		if err != nil {
			return nil, err
		}
		if e, ok := c.entries[key]; ok && now.Before(e.until) {
			out[name] = e.tier
			continue
		}
		keys[name] = key
		ask = append(ask, svc)
	}
	answers, err := Lookup(ctx, action, ask, tiers)
	if err != nil {
		return nil, err
	}
	for name, tier := range answers {
		out[name] = tier
		c.entries[keys[name]] = entry{tier: tier, until: now.Add(remember)}
	}
	return out, nil
}

func fingerprint(action v1alpha1.TierLookup, svc *corev1.Service, tiers []string) ([sha256.Size]byte, error) {
	text, err := json.Marshal([]any{action, question(svc), tiers})
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("looking up tiers: service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return sha256.Sum256(text), nil
}
