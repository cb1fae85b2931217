// Package calico reads and changes Calico's pools, blocks, affinities and handles in its Kubernetes
// datastore (crd.projectcalico.org/v1; libcalico-go/lib/apis/v3 and api/pkg/apis/projectcalico/v3
// of github.com/projectcalico/calico).
package calico

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// GroupVersion of the resources.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}
}

// ErrAbsent says that the cluster has no Calico that keeps its data in Kubernetes.
var ErrAbsent = errors.New("the cluster has no resources of crd.projectcalico.org")

// DefaultBlockSize is the prefix length of IPv4 blocks of pools that name none.
const DefaultBlockSize = 26

// PoolSpec is spec of an IPPool.
type PoolSpec struct {
	CIDR             string   `json:"cidr"`
	BlockSize        int      `json:"blockSize,omitempty"`
	Disabled         bool     `json:"disabled,omitempty"`
	NodeSelector     string   `json:"nodeSelector,omitempty"`
	AllowedUses      []string `json:"allowedUses,omitempty"`
	VXLANMode        string   `json:"vxlanMode,omitempty"`
	IPIPMode         string   `json:"ipipMode,omitempty"`
	NATOutgoing      bool     `json:"natOutgoing,omitempty"`
	DisableBGPExport bool     `json:"disableBGPExport,omitempty"`
}

// Pool is a range of addresses for pods.
type Pool struct {
	Name string
	CIDR netip.Prefix
	Spec PoolSpec
	// Object is the whole of it as the cluster has it.
	Object *unstructured.Unstructured
}

func (p *Pool) BlockSize() int {
	if p.Spec.BlockSize > 0 {
		return p.Spec.BlockSize
	}
	return DefaultBlockSize
}

func (p *Pool) ForPods() bool {
	return len(p.Spec.AllowedUses) == 0 || slices.Contains(p.Spec.AllowedUses, "Workload")
}

// Overlay names the encapsulation, VXLAN or IPIP; empty if there is none.
func (p *Pool) Overlay() string {
	off := func(mode string) bool { return mode == "" || mode == "Never" }
	switch {
	case !off(p.Spec.VXLANMode):
		return "VXLAN"
	case !off(p.Spec.IPIPMode):
		return "IPIP"
	}
	return ""
}

// Block is a part of a pool whose addresses one node gives out.
type Block struct {
	Name string
	CIDR netip.Prefix
	// Node it belongs to; empty if to none.
	Node string
	// Allocations are the addresses in use, and by what.
	Allocations []Allocation
	Object      *unstructured.Unstructured
}

// Allocation is one address that is given out.
type Allocation struct {
	Addr   netip.Addr
	Handle string
	// Attributes are such as pod, namespace, node and type.
	Attributes map[string]string
}

// Affinity says that a node owns a block, or is about to.
type Affinity struct {
	Name, Node, State string
	CIDR              netip.Prefix
	Object            *unstructured.Unstructured
}

// Handle counts, by block, the addresses given out together.
type Handle struct {
	Name   string
	ID     string
	Blocks map[string]int
	Object *unstructured.Unstructured
}

// State is all of it at one time.
type State struct {
	Pools      []Pool
	Blocks     []Block
	Affinities []Affinity
	Handles    []Handle
	// Ready is false while the datastore is locked (ClusterInformation, datastoreReady).
	Ready bool
}

// Load reads the State. It fails with ErrAbsent if the cluster has no Calico.
func Load(ctx context.Context, c client.Client) (*State, error) {
	s := &State{Ready: true}
	pools, err := LoadPools(ctx, c)
	if err != nil {
		return nil, err
	}
	s.Pools = pools
	if err := each(ctx, c, "IPAMBlock", func(u *unstructured.Unstructured) error {
		b, err := readBlock(u)
		s.Blocks = append(s.Blocks, b)
		return err
	}); err != nil {
		return nil, err
	}
	if err := each(ctx, c, "BlockAffinity", func(u *unstructured.Unstructured) error {
		a, err := readAffinity(u)
		s.Affinities = append(s.Affinities, a)
		return err
	}); err != nil {
		return nil, err
	}
	if err := each(ctx, c, "IPAMHandle", func(u *unstructured.Unstructured) error {
		h, err := readHandle(u)
		s.Handles = append(s.Handles, h)
		return err
	}); err != nil {
		return nil, err
	}
	return s, each(ctx, c, "ClusterInformation", func(u *unstructured.Unstructured) error {
		if ready, found, err := unstructured.NestedBool(u.Object, "spec", "datastoreReady"); err == nil && found {
			s.Ready = ready
		}
		return nil
	})
}

// LoadPools reads the pools alone.
func LoadPools(ctx context.Context, c client.Client) ([]Pool, error) {
	var pools []Pool
	err := each(ctx, c, "IPPool", func(u *unstructured.Unstructured) error {
		p, err := ReadPool(u)
		pools = append(pools, p)
		return err
	})
	return pools, err
}

// Empty is an object of one of the kinds, to be read into.
func Empty(kind, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(GroupVersion().WithKind(kind))
	u.SetName(name)
	return u
}

func each(ctx context.Context, c client.Client, kind string, take func(*unstructured.Unstructured) error) error {
	token := ""
	for {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(GroupVersion().WithKind(kind + "List"))
		err := c.List(ctx, list, client.Limit(500), client.Continue(token))
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return ErrAbsent
		}
		if err != nil {
			return fmt.Errorf("listing %s: %w", kind, err)
		}
		for i := range list.Items {
			if err := take(&list.Items[i]); err != nil {
				return fmt.Errorf("%s %s: %w", kind, list.Items[i].GetName(), err)
			}
		}
		if token = list.GetContinue(); token == "" {
			return nil
		}
	}
}

func into(u *unstructured.Unstructured, spec any) error {
	fields, _, err := unstructured.NestedMap(u.Object, "spec")
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(fields, spec)
}

// ReadPool reads an IPPool.
func ReadPool(u *unstructured.Unstructured) (Pool, error) {
	p := Pool{Name: u.GetName(), Object: u}
	if err := into(u, &p.Spec); err != nil {
		return p, err
	}
	var err error
	p.CIDR, err = netip.ParsePrefix(p.Spec.CIDR)
	return p, err
}

type blockSpec struct {
	CIDR        string   `json:"cidr"`
	Affinity    *string  `json:"affinity,omitempty"`
	Allocations []*int64 `json:"allocations"`
	Attributes  []struct {
		Primary   *string           `json:"handle_id,omitempty"`
		Secondary map[string]string `json:"secondary,omitempty"`
	} `json:"attributes"`
}

func readBlock(u *unstructured.Unstructured) (Block, error) {
	b := Block{Name: u.GetName(), Object: u}
	var spec blockSpec
	if err := into(u, &spec); err != nil {
		return b, err
	}
	var err error
	if b.CIDR, err = netip.ParsePrefix(spec.CIDR); err != nil {
		return b, err
	}
	if spec.Affinity != nil {
		b.Node = strings.TrimPrefix(*spec.Affinity, "host:")
		if strings.HasPrefix(*spec.Affinity, "virtual:") { // of no node, such as those of load balancers
			b.Node = ""
		}
	}
	at := b.CIDR.Masked().Addr()
	for _, index := range spec.Allocations {
		if !b.CIDR.Contains(at) {
			return b, fmt.Errorf("has %d allocations, more than %s has addresses", len(spec.Allocations), b.CIDR)
		}
		if index != nil {
			a := Allocation{Addr: at}
			if i := int(*index); i >= 0 && i < len(spec.Attributes) {
				a.Attributes = spec.Attributes[i].Secondary
				if h := spec.Attributes[i].Primary; h != nil {
					a.Handle = *h
				}
			}
			b.Allocations = append(b.Allocations, a)
		}
		at = at.Next()
	}
	return b, nil
}

func readAffinity(u *unstructured.Unstructured) (Affinity, error) {
	a := Affinity{Name: u.GetName(), Object: u}
	var spec struct {
		CIDR  string `json:"cidr"`
		Node  string `json:"node"`
		State string `json:"state"`
	}
	err := into(u, &spec)
	if err != nil {
		return a, err
	}
	a.Node, a.State = spec.Node, spec.State
	a.CIDR, err = netip.ParsePrefix(spec.CIDR)
	return a, err
}

func readHandle(u *unstructured.Unstructured) (Handle, error) {
	h := Handle{Name: u.GetName(), Object: u}
	var spec struct {
		HandleID string         `json:"handleID"`
		Block    map[string]int `json:"block"`
	}
	err := into(u, &spec)
	h.ID, h.Blocks = spec.HandleID, spec.Block
	return h, err
}
