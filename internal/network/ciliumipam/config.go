// Package ciliumipam changes pod ranges where Cilium's operator gives nodes theirs, in CiliumNodes
// (ipam: cluster-pool and multi-pool; operator/pkg/ipam/allocator in github.com/cilium/cilium).
package ciliumipam

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// Modes of Cilium in which each node has a range of its own (pkg/ipam/option).
const (
	// ClusterPool has its operator give nodes ranges, in their CiliumNodes.
	ClusterPool = "cluster-pool"
	// MultiPool has it give nodes ranges of CiliumPodIPPools, as many as their agents ask for.
	MultiPool = "multi-pool"
	// Kubernetes has agents take the range of their Node when they start.
	Kubernetes = "kubernetes"
)

// Keys of ConfigMap cilium-config.
const (
	ModeKey     = "ipam"
	PoolKey     = "cluster-pool-ipv4-cidr"
	SizeKey     = "cluster-pool-ipv4-mask-size"
	DefaultKey  = "ipam-default-ip-pool"
	RoutingKey  = "routing-mode"
	NativeKey   = "ipv4-native-routing-cidr"
	DirectKey   = "auto-direct-node-routes"
	ClusterKey  = "cluster-id"
	BGPKey      = "enable-bgp-control-plane"
	defaultSize = 24 // cluster-pool-ipv4-mask-size in operator/option
	defaultPool = "default"
)

// FeatureKeys of cilium-config switch on what has rules of its own for addresses of pods, or for
// ranges of nodes: encryption, policies for nodes, and gateways (pkg/option, pkg/ztunnel).
func FeatureKeys() []string {
	return []string{
		"enable-wireguard", "enable-ipsec", "enable-ztunnel", "enable-host-firewall", "enable-egress-gateway", "enable-nat46x64-gateway", "enable-srv6",
	}
}

// DefaultPool is the name of the pool that gives addresses to pods that name none.
func DefaultPool(cm *corev1.ConfigMap) string { return cmp.Or(cm.Data[DefaultKey], defaultPool) }

// PoolConfig is what cilium-config says of pods' addresses.
type PoolConfig struct {
	Mode string
	// Pools are the IPv4 ranges of which the operator gives nodes theirs, each of so many bits.
	Pools []netip.Prefix
	Bits  int
	// Before are the pools before the migration; the same as Pools, if it has not changed them.
	Before []netip.Prefix
	// Native says that packets leave nodes as they are, and NativeRange which go untranslated.
	Native, Direct bool
	NativeRange    netip.Prefix
}

// ReadConfig reads cilium-config. It fails for ranges that are none.
func ReadConfig(cm *corev1.ConfigMap) (c PoolConfig, err error) {
	c = PoolConfig{Mode: cm.Data[ModeKey], Bits: defaultSize, Native: cm.Data[RoutingKey] == "native", Direct: cm.Data[DirectKey] == "true"}
	if c.Pools, err = prefixes(cm.Data[PoolKey]); err != nil {
		return c, fmt.Errorf("%s of ConfigMap %s/%s: %w", PoolKey, cm.Namespace, cm.Name, err)
	}
	if text := cm.Data[SizeKey]; text != "" {
		if c.Bits, err = strconv.Atoi(text); err != nil {
			return c, fmt.Errorf("%s of ConfigMap %s/%s: %q is no prefix length", SizeKey, cm.Namespace, cm.Name, text)
		}
	}
	if text := cm.Data[NativeKey]; text != "" {
		if c.NativeRange, err = netip.ParsePrefix(text); err != nil {
			return c, fmt.Errorf("%s of ConfigMap %s/%s: %q is no range", NativeKey, cm.Namespace, cm.Name, text)
		}
	}
	c.Before = c.Pools
	if was := before(cm); was != nil {
		c.Before, err = prefixes(was[PoolKey])
	}
	return c, err
}

// prefixes reads ranges as the chart joins them: by spaces.
func prefixes(text string) (all []netip.Prefix, err error) {
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' }) {
		p, err := netip.ParsePrefix(one)
		if err != nil {
			return nil, fmt.Errorf("%q is no range", one)
		}
		if p.Addr().Is4() {
			all = append(all, p)
		}
	}
	return all, nil
}

// before is what the ConfigMap had before the migration; nil, if it has that now.
func before(cm *corev1.ConfigMap) (was map[string]string) {
	if json.Unmarshal([]byte(cm.Annotations[v1alpha1.AnnotationCiliumPool]), &was) != nil {
		return nil
	}
	return was
}

// Gives reports whether nodes get ranges of these pools.
func (c PoolConfig) Gives(p netip.Prefix) bool {
	for _, pool := range c.Pools {
		if nodeipam.Within(pool, p) {
			return true
		}
	}
	return false
}

// SetPool has the ConfigMap name another pool, and notes what it had before.
func SetPool(cm *corev1.ConfigMap, to netip.Prefix, bits int) error {
	if before(cm) == nil {
		was, err := json.Marshal(map[string]string{PoolKey: cm.Data[PoolKey], SizeKey: cm.Data[SizeKey]})
		if err != nil {
			return fmt.Errorf("configmap %s/%s: %w", cm.Namespace, cm.Name, err)
		}
		if cm.Annotations == nil {
			cm.Annotations = map[string]string{}
		}
		cm.Annotations[v1alpha1.AnnotationCiliumPool] = string(was)
	}
	cm.Data[PoolKey], cm.Data[SizeKey] = to.String(), strconv.Itoa(bits)
	return nil
}

// RestorePool has the ConfigMap name the pools that it had before: those of its note, else of
// wanted.
func RestorePool(cm *corev1.ConfigMap, wanted []netip.Prefix) {
	was := before(cm)
	if has, err := prefixes(cm.Data[PoolKey]); was == nil && (err != nil || !slices.Equal(has, wanted)) {
		var texts []string
		for _, p := range wanted {
			texts = append(texts, p.String())
		}
		was = map[string]string{PoolKey: strings.Join(texts, " ")}
	}
	for key, value := range was {
		if cm.Data[key] = value; value == "" {
			delete(cm.Data, key)
		}
	}
}

// ForgetPool takes the note of the former pools off.
func ForgetPool(cm *corev1.ConfigMap) { delete(cm.Annotations, v1alpha1.AnnotationCiliumPool) }

// Noted reports whether the ConfigMap has a note of former pools.
func Noted(cm *corev1.ConfigMap) bool { return cm.Annotations[v1alpha1.AnnotationCiliumPool] != "" }
