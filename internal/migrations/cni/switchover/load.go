package switchover

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/safety/freeze"
)

func (d Deps) Load(ctx context.Context, s Spec) (*Inventory, error) {
	out, err := d.Occupants(ctx, s)
	if err != nil {
		return nil, err
	}
	out.Present = map[string]*unstructured.Unstructured{}
	for _, read := range []func(context.Context, *Inventory) error{
		d.networks, d.stored, d.manifests, d.bare, d.old, d.ranges, d.policies, d.webhooks, d.proxies, d.freeze, d.owners,
	} {
		if err := read(ctx, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Occupants reads nodes, pods and status.cni as they are now, and nothing else.
func (d Deps) Occupants(ctx context.Context, s Spec) (*Inventory, error) {
	out := &Inventory{Spec: s}
	var err error
	if out.Status, err = d.Status(ctx, s.Name); err != nil {
		return nil, err
	}
	if out.Nodes, err = cluster.List[corev1.Node](ctx, d.Cluster, &corev1.NodeList{}); err != nil {
		return nil, err
	}
	out.Pods, err = cluster.List[corev1.Pod](ctx, d.Cluster, &corev1.PodList{})
	return out, err
}

func (d Deps) networks(ctx context.Context, s *Inventory) (err error) {
	if s.DaemonSets, err = cluster.List[appsv1.DaemonSet](ctx, d.Cluster, &appsv1.DaemonSetList{}); err != nil {
		return err
	}
	s.Networks, s.ProxySets, s.Unknown = manifests.Detect(s.DaemonSets), inventory.ProxySets(s.DaemonSets), manifests.UnknownNetworks(s.DaemonSets)
	s.Deployments, err = cluster.List[appsv1.Deployment](ctx, d.Cluster, &appsv1.DeploymentList{})
	s.Operators = operatorsOf(s.Spec.Name, s.Deployments)
	return err
}

// operatorsOf are the Deployments that keep a network as it is. One that is scaled to nothing does
// not, nor that of the network which the migration brings.
func operatorsOf(migration string, deployments []appsv1.Deployment) []string {
	var out []string
	for i := range deployments {
		d := &deployments[i]
		known := slices.Contains([]string{"tigera-operator", "cilium-operator", "canal-operator"}, d.Name)
		if known && ptr.Deref(d.Spec.Replicas, 1) > 0 && d.Labels[v1alpha1.LabelMigration] != migration {
			out = append(out, "Deployment "+d.Namespace+"/"+d.Name)
		}
	}
	return out
}

// stored reads backups: objects as they were, and the manifests as they were first read.
func (d Deps) stored(ctx context.Context, s *Inventory) error {
	if s.Status.ManifestsHash == "" {
		return nil
	}
	all, err := backup.Read(ctx, d.Cluster, s.Spec.Name)
	if err != nil {
		return err
	}
	var read []*unstructured.Unstructured
	for i := range all {
		o := &all[i]
		switch {
		case o.GetUID() == manifestUID:
			unstructured.RemoveNestedField(o.Object, "metadata", "uid")
			read = append(read, o)
		case o.GetKind() == "Pod":
			p, err := manifests.As[corev1.Pod](o)
			if err != nil {
				return fmt.Errorf("%s: %w", manifests.KeyOf(o), err)
			}
			s.Bare = append(s.Bare, *p)
		default:
			s.Stored = append(s.Stored, o)
		}
	}
	if len(read) > 0 {
		s.Manifests, err = manifests.New(read)
	}
	return err
}

func (d Deps) located(paths []string) []string {
	var all []string
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			path = filepath.Join(d.Dir, path)
		}
		all = append(all, path)
	}
	return all
}

// manifests reads them until the migration has backed them up, and which of their objects the
// cluster has.
func (d Deps) manifests(ctx context.Context, s *Inventory) error {
	if s.Manifests == nil {
		if s.Manifests, s.ManifestsProblem = manifests.Read(d.located(s.Spec.Manifests)); s.ManifestsProblem != nil {
			return nil //nolint:nilerr // it is a finding
		}
	}
	for _, o := range s.Manifests.Objects {
		have, err := d.Get(ctx, o.GroupVersionKind(), client.ObjectKeyFromObject(o))
		if err != nil {
			return err
		}
		if have != nil {
			s.Present[manifests.KeyOf(o).Full()] = have
		}
	}
	return nil
}

func (d Deps) bare(_ context.Context, s *Inventory) error {
	for i := range s.Pods {
		p := &s.Pods[i]
		known := slices.ContainsFunc(s.Bare, func(b corev1.Pod) bool { return b.Namespace == p.Namespace && b.Name == p.Name })
		if Bare(p) && !known && !MadeSince(p, s.Status.Since) {
			s.Bare = append(s.Bare, *p)
		}
	}
	return nil
}

// Get reads an object of any kind; nil, if it or its kind is not there. A namespaced object without
// a namespace is in default, as kubectl has it.
func (d Deps) Get(ctx context.Context, gvk schema.GroupVersionKind, key types.NamespacedName) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(gvk)
	if namespaced, err := d.Any.IsObjectNamespaced(o); err == nil && namespaced && key.Namespace == "" {
		key.Namespace = metav1.NamespaceDefault
	}
	err := d.Any.Get(ctx, key, o)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", gvk.Kind, key, err)
	}
	o.SetManagedFields(nil)
	return o, nil
}

// old finds the objects of the old network.
func (d Deps) old(ctx context.Context, s *Inventory) error {
	namespace := "kube-system"
	for _, n := range s.Networks {
		if n.Name == s.From() {
			namespace = n.Set.Namespace
			have, err := d.Get(ctx, appsv1.SchemeGroupVersion.WithKind("DaemonSet"), client.ObjectKeyFromObject(n.Set))
			if err != nil {
				return err
			}
			if have != nil {
				s.Old = append(s.Old, have)
			}
		}
	}
	for _, o := range s.Stored { // where its DaemonSet was
		if o.GetKind() == "DaemonSet" {
			namespace = o.GetNamespace()
		}
	}
	for _, r := range podnetwork.Remnants(s.From(), namespace) {
		have, err := d.Get(ctx, r.GroupVersionKind, r.NamespacedName)
		if err != nil {
			return err
		}
		if have != nil && !s.Wanted(have) {
			s.Old = append(s.Old, have)
		}
	}
	return nil
}

func (s *Inventory) Wanted(o *unstructured.Unstructured) bool {
	return s.Manifests != nil &&
		slices.ContainsFunc(s.Manifests.Objects, func(m *unstructured.Unstructured) bool { return manifests.KeyOf(m) == manifests.KeyOf(o) })
}

// ranges reads what pods get their addresses from now, and what Services do.
func (d Deps) ranges(ctx context.Context, s *Inventory) error {
	add := func(texts ...string) {
		m := &manifests.ManifestSet{Ranges: s.Ranges}
		m.AddRanges(strings.Join(texts, ","))
		s.Ranges = m.Ranges
	}
	add(s.Status.Ranges...)
	if len(s.Ranges) == 0 {
		if err := d.currentRanges(ctx, s, add); err != nil {
			return err
		}
	}
	if s.From() == v1alpha1.HostLocal { // Nodes that have joined meanwhile have theirs too
		s.Ranges = OfNodes(s.Nodes, s.Ranges)
	}
	if len(s.Ranges) == 0 {
		for i := range s.Nodes {
			add(s.Nodes[i].Spec.PodCIDRs...)
		}
	}
	all := &networkingv1.ServiceCIDRList{}
	err := d.Cluster.List(ctx, all)
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return fmt.Errorf("listing servicecidrs: %w", err)
	}
	for i := range all.Items {
		for _, text := range all.Items[i].Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				s.Services = append(s.Services, p)
			}
		}
	}
	return nil
}

func (d Deps) currentRanges(ctx context.Context, s *Inventory, add func(...string)) error {
	for _, o := range s.Old {
		if o.GetKind() != "ConfigMap" {
			continue
		}
		if cm, err := manifests.As[corev1.ConfigMap](o); err == nil {
			add(manifests.RangesOf(cm))
		}
	}
	if set := s.OldSet(); set != nil && s.From() == v1alpha1.Weave {
		add(podnetwork.WeaveRange(set.Set).Range)
	}
	if s.From() != v1alpha1.Calico {
		return nil
	}
	pools, err := calico.LoadPools(ctx, d.Cluster)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return err
	}
	for i := range pools {
		add(pools[i].CIDR.String())
	}
	return nil
}

// ownPolicies are the kinds of policies that networks have beside NetworkPolicy.
func ownPolicies(network v1alpha1.CNIName) []schema.GroupVersionKind {
	switch network {
	case v1alpha1.Calico, v1alpha1.Canal:
		return []schema.GroupVersionKind{
			{Group: manifests.CalicoGroup, Version: "v1", Kind: "NetworkPolicy"}, {Group: manifests.CalicoGroup, Version: "v1", Kind: "GlobalNetworkPolicy"},
		}
	case v1alpha1.Cilium:
		return []schema.GroupVersionKind{
			{Group: "cilium.io", Version: "v2", Kind: "CiliumNetworkPolicy"},
			{Group: "cilium.io", Version: "v2", Kind: "CiliumClusterwideNetworkPolicy"},
		}
	}
	return nil
}

func (d Deps) policies(ctx context.Context, s *Inventory) (err error) {
	s.Policies.Standard, err = cluster.List[networkingv1.NetworkPolicy](ctx, d.Cluster, &networkingv1.NetworkPolicyList{})
	if err != nil {
		return err
	}
	s.Policies.Standard = slices.DeleteFunc(s.Policies.Standard, func(p networkingv1.NetworkPolicy) bool {
		return p.Namespace == v1alpha1.SystemNamespace
	})
	for _, gvk := range ownPolicies(s.From()) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		err := d.Any.List(ctx, list)
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("listing %s: %w", gvk.Kind, err)
		}
		for i := range list.Items {
			list.Items[i].SetManagedFields(nil)
			s.Policies.Own = append(s.Policies.Own, &list.Items[i])
		}
	}
	return nil
}

// webhooks reads those that refuse what they cannot be asked about, and are answered for by a
// Service.
func (d Deps) webhooks(ctx context.Context, s *Inventory) error {
	validating, err := cluster.List[admissionv1.ValidatingWebhookConfiguration](
		ctx, d.Cluster, &admissionv1.ValidatingWebhookConfigurationList{})
	if err != nil {
		return err
	}
	for i := range validating {
		s.Webhooks = append(s.Webhooks, Refusing("ValidatingWebhookConfiguration "+validating[i].Name, validating[i].Webhooks)...)
	}
	mutating, err := cluster.List[admissionv1.MutatingWebhookConfiguration](
		ctx, d.Cluster, &admissionv1.MutatingWebhookConfigurationList{})
	for i := range mutating {
		var all []admissionv1.ValidatingWebhook
		for _, w := range mutating[i].Webhooks {
			all = append(all, admissionv1.ValidatingWebhook{
				Name: w.Name, FailurePolicy: w.FailurePolicy, ClientConfig: w.ClientConfig, NamespaceSelector: w.NamespaceSelector, Rules: w.Rules,
			})
		}
		s.Webhooks = append(s.Webhooks, Refusing("MutatingWebhookConfiguration "+mutating[i].Name, all)...)
	}
	return err
}

func (d Deps) freeze(ctx context.Context, s *Inventory) (err error) {
	s.Frozen, err = freeze.DeploysInForce(ctx, d.Cluster)
	return err
}

// proxies looks for kube-proxy and NodeLocal DNSCache in ConfigMaps, DaemonSets and pods.
func (d Deps) proxies(ctx context.Context, s *Inventory) error {
	found := &inventory.Scan{}
	scanner, err := references.New(s.Ranges, s.Target(), nil)
	if err != nil {
		return fmt.Errorf("looking for kube-proxy: %w", err)
	}
	configs := &corev1.ConfigMapList{}
	if err := d.Cluster.List(ctx, configs, client.InNamespace("kube-system")); err != nil {
		return fmt.Errorf("looking for kube-proxy: %w", err)
	}
	take := func(o client.Object) {
		if o.GetLabels()[v1alpha1.LabelRole] == "" {
			found.Take(scanner, o)
		}
	}
	for i := range configs.Items {
		take(&configs.Items[i])
	}
	for i := range s.DaemonSets {
		take(&s.DaemonSets[i])
	}
	for i := range s.Pods { // static pods, and those of an installer's own
		found.Take(scanner, &s.Pods[i])
	}
	slices.SortStableFunc(found.Proxies, func(a, b inventory.Proxy) int { return strings.Compare(a.Object, b.Object) })
	s.Proxies, s.NodeLocal = found.Proxies, found.NodeLocal
	return nil
}
