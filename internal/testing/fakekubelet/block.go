package fakekubelet

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/network/calico"
)

// BlockName is the name of a block's object, such as 10-244-0-0-26.
func BlockName(cidr netip.Prefix) string {
	return strings.NewReplacer(".", "-", "/", "-", ":", "-").Replace(cidr.String())
}

// NewBlock is an empty block as Calico makes it (newBlock in libcalico-go/lib/ipam/ipam_block.go).
func NewBlock(cidr netip.Prefix, node string) *unstructured.Unstructured {
	size := 1 << (cidr.Addr().BitLen() - cidr.Bits())
	given, free := make([]any, size), make([]any, size)
	for i := range free {
		free[i] = int64(i)
	}
	u := calico.Empty("IPAMBlock", BlockName(cidr))
	u.Object["spec"] = map[string]any{
		"cidr": cidr.String(), "affinity": "host:" + node, "strictAffinity": false, "deleted": false,
		"allocations": given, "unallocated": free, "attributes": []any{},
		"sequenceNumber": time.Now().UnixNano(), "sequenceNumberForAllocation": map[string]any{},
	}
	return u
}

// NewAffinity is what says that a node owns a block.
func NewAffinity(cidr netip.Prefix, node string) *unstructured.Unstructured {
	u := calico.Empty("BlockAffinity", node+"-"+BlockName(cidr))
	u.Object["spec"] = map[string]any{"cidr": cidr.String(), "node": node, "state": "confirmed", "deleted": "false"}
	return u
}

// NewHandle counts the addresses of one user, by block.
func NewHandle(id string, blocks map[string]any) *unstructured.Unstructured {
	u := calico.Empty("IPAMHandle", strings.ToLower(id))
	u.Object["spec"] = map[string]any{"handleID": id, "block": blocks, "deleted": false}
	return u
}

// Assign gives out the first free address of a block. It changes the object only.
func Assign(block *unstructured.Unstructured, u User) (netip.Addr, error) {
	spec := block.Object["spec"].(map[string]any)
	cidr, err := netip.ParsePrefix(spec["cidr"].(string))
	if err != nil {
		return netip.Addr{}, err
	}
	free := spec["unallocated"].([]any)
	if len(free) == 0 {
		return netip.Addr{}, fmt.Errorf("block %s has no free address", cidr)
	}
	n := free[0].(int64)
	attributes, given := spec["attributes"].([]any), spec["allocations"].([]any)
	secondary := map[string]any{}
	for k, v := range u.Attributes {
		secondary[k] = v
	}
	given[n] = int64(len(attributes))
	spec["attributes"] = append(attributes, map[string]any{"handle_id": u.Handle, "secondary": secondary})
	spec["allocations"], spec["unallocated"] = given, free[1:]
	sequence, _, err := unstructured.NestedInt64(block.Object, "spec", "sequenceNumber")
	if err != nil {
		return netip.Addr{}, err
	}
	spec["sequenceNumber"] = sequence + 1
	if err := unstructured.SetNestedField(block.Object, sequence, "spec", "sequenceNumberForAllocation", fmt.Sprint(n)); err != nil {
		return netip.Addr{}, err
	}
	a := cidr.Addr()
	for range n {
		a = a.Next()
	}
	return a, nil
}
