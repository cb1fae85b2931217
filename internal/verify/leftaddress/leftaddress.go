// Package leftaddress finds the addresses that Services have left, of which agents watch who uses
// them, and compares what an agent says it watches with what it has to.
package leftaddress

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// FormerOwner is a Service that has left an address, and when.
type FormerOwner struct {
	Service types.NamespacedName
	At      time.Time
}

// Addresses are what Services have left, by address.
type Addresses map[netip.Addr]FormerOwner

// Ranges are those between which Services move.
type Ranges struct {
	// From are those that they leave, All those to which they come as well.
	From, All []netip.Prefix
}

// Of is what Services have left, by the addresses that are reserved for them: tenants write the
// labels and annotations of Services, and no reservation. Bridges are known by the names that
// reservations have, and their own addresses belong to it, as names lead there in a hop.
func Of(migration string, reserved []*networkingv1.IPAddress, services []*corev1.Service, ranges Ranges) Addresses {
	left, of := Addresses{}, map[types.NamespacedName]FormerOwner{}
	standing, named := index(services)
	for _, ip := range reserved {
		a, err := netip.ParseAddr(ip.Name)
		key, held := bridge.HeldFor(ip)
		if err != nil || !held || ip.Labels[v1alpha1.LabelMigration] != migration || !cidr.Contains(ranges.From, a) {
			continue
		}
		d := FormerOwner{Service: key, At: bridge.LeftAt(ip)}
		if svc := standing[key]; svc != nil {
			if AddressIn(svc, ranges.All) == a { // it is back
				continue
			}
			d.Service = types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
		}
		left[a], of[key] = d, d
	}
	for key, d := range of {
		if b := named[key]; b != nil {
			if own := AddressIn(b, ranges.All); own.IsValid() {
				left[own] = d
			}
		}
	}
	return left
}

// index has Services by the bridge that each would have, and by their own names.
func index(services []*corev1.Service) (standing, named map[types.NamespacedName]*corev1.Service) {
	standing, named = map[types.NamespacedName]*corev1.Service{}, map[types.NamespacedName]*corev1.Service{}
	for _, svc := range services {
		named[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = svc
		standing[types.NamespacedName{Namespace: svc.Namespace, Name: bridge.Name(svc.Name, svc.UID)}] = svc
	}
	return standing, named
}

// AddressIn is a Service's address in some ranges; invalid, if it has none there.
func AddressIn(svc *corev1.Service, ranges []netip.Prefix) netip.Addr {
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return netip.Addr{}
	}
	for _, text := range append(slices.Clone(svc.Spec.ClusterIPs), svc.Spec.ClusterIP) {
		if a, err := netip.ParseAddr(text); err == nil && cidr.Contains(ranges, a) {
			return a
		}
	}
	return netip.Addr{}
}

// Watched is what an agent reports: ten thousand addresses have no room in the report of each node.
func (s Addresses) Watched() *v1alpha1.WatchedAddresses {
	return &v1alpha1.WatchedAddresses{Count: len(s), Digest: fmt.Sprintf("%016x", s.sum())}
}

// sum does not depend on the order. A set with one address less differs by the hash of that.
func (s Addresses) sum() (sum uint64) {
	for a := range s {
		sum ^= hash(a)
	}
	return sum
}

func hash(a netip.Addr) uint64 {
	of := sha256.Sum256(a.AsSlice())
	return binary.BigEndian.Uint64(of[:])
}

// Lacks says what an agent does not watch of a set that it has to; empty, if it watches all.
func (s Addresses) Lacks(watched *v1alpha1.WatchedAddresses) string {
	if watched == nil {
		watched = &v1alpha1.WatchedAddresses{}
	}
	want := s.Watched()
	if watched.Count == want.Count && (watched.Digest == want.Digest || want.Count == 0) {
		return ""
	}
	all := s.sum()
	sum, _ := strconv.ParseUint(watched.Digest, 16, 64)
	for a, d := range s {
		if watched.Count == want.Count-1 && all^hash(a) == sum {
			return fmt.Sprintf("does not watch old address %s (service %s)", a, d.Service)
		}
	}
	if watched.Count < want.Count {
		return fmt.Sprintf("watches %d of %d old addresses", watched.Count, want.Count)
	}
	return fmt.Sprintf("watches %d old addresses, which are not the %d that Services have left", watched.Count, want.Count)
}
