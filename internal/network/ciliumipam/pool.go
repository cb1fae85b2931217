package ciliumipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// PoolKind is that of CiliumPodIPPools.
func PoolKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "cilium.io", Version: "v2alpha1", Kind: "CiliumPodIPPool"}
}

// PodPool is a CiliumPodIPPool (pkg/k8s/apis/cilium.io/v2alpha1): ranges of which Cilium's operator
// gives nodes theirs, each of so many bits. Ranges may be added to one; bits never change.
type PodPool struct {
	Name   string
	Ranges []netip.Prefix
	Bits   int
	// IPv6 are ranges of that family, which stay as they are.
	IPv6 []string
	// Note is what replumb has noted on it; nil without a note.
	Note *PoolNote

	object *unstructured.Unstructured
}

// PoolNote is what a pool was before the migration, and which pods of the operator have seen it so.
type PoolNote struct {
	Ranges    []netip.Prefix `json:"ranges"`
	Operators []types.UID    `json:"operators,omitempty"`
}

// ReadPool reads a CiliumPodIPPool. It fails for ranges that are none.
func ReadPool(u *unstructured.Unstructured) (*PodPool, error) {
	type family struct {
		CIDRs    []string `json:"cidrs"`
		MaskSize int      `json:"maskSize"`
	}
	var f struct {
		Spec struct {
			IPv4 family `json:"ipv4"`
			IPv6 family `json:"ipv6"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &f); err != nil {
		return nil, fmt.Errorf("ciliumpodippool %s: %w", u.GetName(), err)
	}
	p := &PodPool{Name: u.GetName(), Bits: f.Spec.IPv4.MaskSize, IPv6: f.Spec.IPv6.CIDRs, object: u}
	for _, text := range f.Spec.IPv4.CIDRs {
		r, err := netip.ParsePrefix(text)
		if err != nil || !r.Addr().Is4() {
			return nil, fmt.Errorf("ciliumpodippool %s: %q in spec.ipv4.cidrs is no IPv4 range", p.Name, text)
		}
		p.Ranges = append(p.Ranges, r)
	}
	var note PoolNote
	if json.Unmarshal([]byte(u.GetAnnotations()[v1alpha1.AnnotationCiliumPool]), &note) == nil {
		p.Note = &note
	}
	return p, nil
}

// Object is the whole of it as the cluster has it.
func (p *PodPool) Object() client.Object { return p.object }

// Former are its ranges before the migration.
func (p *PodPool) Former() []netip.Prefix {
	if p.Note != nil {
		return p.Note.Ranges
	}
	return p.Ranges
}

// ListPools reads all CiliumPodIPPools, by name; none, if Cilium has not defined them.
func ListPools(ctx context.Context, c client.Reader) (map[string]*PodPool, error) {
	items, err := list(ctx, c, PoolKind())
	if err != nil {
		return nil, fmt.Errorf("listing ciliumpodippools: %w", err)
	}
	all := map[string]*PodPool{}
	for i := range items {
		p, err := ReadPool(&items[i])
		if err != nil {
			return nil, err
		}
		all[p.Name] = p
	}
	return all, nil
}

// GetPool reads one CiliumPodIPPool; nil, if it is not there.
func GetPool(ctx context.Context, c client.Reader, name string) (*PodPool, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(PoolKind())
	err := c.Get(ctx, client.ObjectKey{Name: name}, u)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ciliumpodippool %s: %w", name, err)
	}
	return ReadPool(u)
}

// Set has a pool have ranges, in this order, and a note; nil takes the note off.
func (p *PodPool) Set(ctx context.Context, c client.Client, ranges []netip.Prefix, note *PoolNote) error {
	texts := make([]string, len(ranges))
	for i, r := range ranges {
		texts[i] = r.String()
	}
	err := patch(ctx, c, p.object, func(u *unstructured.Unstructured) error {
		return errors.Join(unstructured.SetNestedStringSlice(u.Object, texts, "spec", "ipv4", "cidrs"), setNote(u, note))
	})
	if err != nil {
		return fmt.Errorf("ciliumpodippool %s: %w", p.Name, err)
	}
	return nil
}

func setNote(u *unstructured.Unstructured, note *PoolNote) error {
	if note == nil {
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations", v1alpha1.AnnotationCiliumPool)
		return nil
	}
	text, err := json.Marshal(note)
	if err != nil {
		return err
	}
	return unstructured.SetNestedField(u.Object, string(text), "metadata", "annotations", v1alpha1.AnnotationCiliumPool)
}
