package objectsync

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// Parity is how the two sides compare.
type Parity struct {
	Compared    int
	Differences []copyrules.Difference
}

func (p *Parity) Equal() bool { return len(p.Differences) == 0 }

// maxDifferences is how many are listed. With more, one has to copy first.
const maxDifferences = 10000

// Compare reads both sides in full and reports missing, different and surplus copies. It ignores
// what the clusters' own controllers own, and what policy Keep left alone.
func (c *Copier) Compare(ctx context.Context) (*Parity, error) {
	kinds, err := FindKinds(ctx, c.Source, c.Target, c.Rules)
	if err != nil {
		return nil, err
	}
	scaled, err := c.Target.scaled(ctx)
	if err != nil {
		return nil, err
	}
	p := &Parity{}
	for _, k := range kinds.Copied {
		if err := c.compareKind(ctx, k, scaled, p); err != nil {
			return nil, err
		}
	}
	for _, k := range kinds.Excluded {
		err := c.Target.EachMeta(ctx, k, "", func(o *metav1.PartialObjectMetadata) error {
			if of := objects.KeyOf(o); c.Rules.Owns(o) && !copyrules.Adopts(k, of) {
				p.add(copyrules.Difference{Ref: of.Ref(k), Want: copyrules.Absent, Have: copyrules.Present})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading %s of the target: %w", k, err)
		}
	}
	for _, k := range kinds.Missing {
		err := c.Source.Each(ctx, k, func(o *unstructured.Unstructured) error {
			if c.Rules.WhyNot(k, o) == "" {
				p.Compared++
				p.add(copyrules.Difference{Ref: objects.RefOf(k, o), Want: copyrules.Present, Have: copyrules.Absent})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading %s of the source: %w", k, err)
		}
	}
	return p, nil
}

func (p *Parity) add(all ...copyrules.Difference) {
	p.Differences = append(p.Differences, all[:min(len(all), maxDifferences-len(p.Differences))]...)
}

// compareKind walks both sides in the order of names, so that neither is in memory as a whole.
func (c *Copier) compareKind(ctx context.Context, k objects.ResourceKind, scaled map[objects.Ref]bool, p *Parity) error {
	source, target := c.Source.stream(ctx, k), c.Target.stream(ctx, k)
	for {
		of, more := earlier(source.peek(), target.peek())
		if source.err != nil {
			return fmt.Errorf("reading %s of the source: %w", k, source.err)
		}
		if target.err != nil {
			return fmt.Errorf("reading %s of the target: %w", k, target.err)
		}
		if !more {
			return nil
		}
		c.comparePair(ctx, k, source.take(of), target.take(of), scaled, p)
	}
}

func (c *Copier) comparePair(ctx context.Context, k objects.ResourceKind, from, have *unstructured.Unstructured, scaled map[objects.Ref]bool, p *Parity) {
	var want *unstructured.Unstructured
	if from != nil {
		taken, _, err := c.Rules.Take(k, from)
		if err != nil {
			p.Compared++
			p.add(copyrules.Difference{Ref: objects.RefOf(k, from), Want: "what the transforms make of it: " + err.Error(), Have: "not that"})
			return
		}
		want = taken
	}
	switch {
	case want == nil && have == nil:
	case want == nil:
		if c.Rules.Owns(have) && copyrules.Prunable(k) && !copyrules.Adopts(k, objects.RefOf(k, have).Key()) {
			p.add(copyrules.Difference{Ref: objects.RefOf(k, have), Want: copyrules.Absent, Have: copyrules.Present})
		}
	case have == nil:
		p.Compared++
		p.add(copyrules.Difference{Ref: objects.RefOf(k, want), Want: copyrules.Present, Have: copyrules.Absent})
	case !c.Rules.Owns(have) && c.Rules.Existing() == v1alpha1.ExistingKeep:
	default:
		p.Compared++
		p.add(c.fields(ctx, k, want, have, scaled[objects.RefOf(k, want)])...)
	}
}

// fields are those that differ. Of what an autoscaler scales, replicas are not asked for.
func (c *Copier) fields(ctx context.Context, k objects.ResourceKind, want, have *unstructured.Unstructured, scaled bool) []copyrules.Difference {
	if scaled {
		objects.Drop(want, "spec", "replicas")
		objects.Drop(have, "spec", "replicas")
	}
	diffs := c.Rules.Differences(k, want, have)
	if len(diffs) == 0 {
		return nil
	}
	return c.secondOpinion(ctx, k, want, have, diffs)
}

// secondOpinion has the target's dry run fill in defaults and webhooks' changes.
func (c *Copier) secondOpinion(ctx context.Context, k objects.ResourceKind, want, have *unstructured.Unstructured, diffs []copyrules.Difference) []copyrules.Difference {
	for _, d := range diffs {
		if d.Want != copyrules.Absent {
			return diffs // that is no addition
		}
	}
	trial := want.DeepCopy()
	trial.SetName(want.GetName() + "-replumb-trial")
	full, err := c.Target.try(ctx, k, copyrules.WithoutPorts(trial))
	if err != nil {
		return diffs
	}
	full.SetName(want.GetName())
	if _, asked := objects.Inside(want.Object, "spec")["replicas"]; !asked {
		objects.Drop(full, "spec", "replicas") // the default, of what an autoscaler sets
	}
	// Ports on nodes were compared before, and the trial got others.
	return c.Rules.Differences(k, copyrules.WithoutPorts(full), copyrules.WithoutPorts(have.DeepCopy()))
}

func (s *Side) try(ctx context.Context, k objects.ResourceKind, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: v1alpha1.FieldManager}
	if k.Namespaced {
		return s.objects.Resource(k.GVR()).Namespace(o.GetNamespace()).Create(ctx, o, options)
	}
	return s.objects.Resource(k.GVR()).Create(ctx, o, options)
}
