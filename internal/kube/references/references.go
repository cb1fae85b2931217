// Package references finds written addresses of a Service range in objects of all kinds. It reports
// which address or range stands where, and never quotes the text around, which may be secret.
package references

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const perObject = 20

// Reference is one place where an address or range is written down.
type Reference struct {
	// Object as kind, then namespace/name or name: "ConfigMap shop/cart".
	Object string
	// Field of the object: "data[config.yaml]".
	Field string
	// Value is the address, range or reverse zone; empty in a Secret.
	Value string
	// Bypass says that it is in a container's list of destinations without proxy, which lacks the
	// new ranges: calls would go through the proxy.
	Bypass bool
	// Covered ranges are made up for by others in the policy.
	Covered bool
}

func (r Reference) Kind() string {
	kind, _, _ := strings.Cut(r.Object, " ")
	return kind
}

func (r Reference) IsPolicy() bool {
	switch r.Kind() {
	case "NetworkPolicy", calicoKinds, "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", "CiliumCIDRGroup", "AuthorizationPolicy":
		return true
	}
	return false
}

// Names is what is written there, in words: the value, unless that stays secret.
func (r Reference) Names() string {
	if r.Value == "" {
		return "an old address or range"
	}
	return r.Value
}

func (r Reference) IsZone() bool {
	return strings.HasSuffix(r.Value, zoneEnd4) || strings.HasSuffix(r.Value, zoneEnd6)
}

// Scanner knows what to look for. It is not changed by use, so that many goroutines can share it.
type Scanner struct {
	addresses map[netip.Addr]bool
	from, to  []netip.Prefix
	fromSet   *netipx.IPSet
	toSet     *netipx.IPSet
	// every takes all addresses and ranges for what is looked for.
	every bool
}

// New makes a Scanner for addresses, and for ranges that reach into from without covering to.
func New(from, to []netip.Prefix, addresses []netip.Addr) (*Scanner, error) {
	s := &Scanner{addresses: make(map[netip.Addr]bool, len(addresses)), from: from, to: to}
	for _, a := range addresses {
		s.addresses[a] = true
	}
	var err error
	if s.fromSet, err = set(from); err != nil {
		return nil, err
	}
	s.toSet, err = set(to)
	return s, err
}

func set(all []netip.Prefix) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	for _, p := range all {
		b.AddPrefix(p)
	}
	made, err := b.IPSet()
	if err != nil {
		return nil, fmt.Errorf("ranges %v: %w", all, err)
	}
	return made, nil
}

// InTarget reports whether an address lies in the range the Services move to.
func (s *Scanner) InTarget(a netip.Addr) bool { return s.toSet.Contains(a) }

func (s *Scanner) concerns(p netip.Prefix) bool {
	return s.fromSet.OverlapsPrefix(p) && !coversAll(p, s.to)
}

// coversAll reports whether a range covers those of its family, of which there must be one.
func coversAll(p netip.Prefix, all []netip.Prefix) bool {
	same := ofFamily(p, all)
	for _, o := range same {
		if p.Bits() > o.Bits() || !p.Contains(o.Addr()) {
			return false
		}
	}
	return len(same) > 0
}

// isProxy goes by golang.org/x/net/http/httpproxy and curl(1).
func isProxy(e corev1.EnvVar) bool {
	names := []string{"http_proxy", "https_proxy", "all_proxy"}
	return slices.Contains(names, strings.ToLower(e.Name)) && (e.Value != "" || e.ValueFrom != nil)
}

func isRange(value string) bool {
	p, err := netip.ParsePrefix(value)
	return err == nil && !p.IsSingleIP()
}

// bypassed reports whether a list without proxy has the new ranges too: whole for an old range, and
// an address of them for an old address.
func (s *Scanner) bypassed(list string, asRange bool) bool {
	return slices.ContainsFunc(strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }), func(text string) bool {
		if p, err := netip.ParsePrefix(text); err == nil {
			return coversAll(p, s.to) || !asRange && s.toSet.OverlapsPrefix(p)
		}
		a, err := netip.ParseAddr(text)
		return err == nil && !asRange && s.toSet.Contains(a)
	})
}

func ofFamily(p netip.Prefix, all []netip.Prefix) []netip.Prefix {
	var same []netip.Prefix
	for _, o := range all {
		if o.Addr().Is4() == p.Addr().Is4() {
			same = append(same, o)
		}
	}
	return same
}

// Find lists an object's references in a stable order, at most 20.
func (s *Scanner) Find(o client.Object) []Reference {
	w := &walk{scanner: s}
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		w.volume("PersistentVolume", o)
	case *corev1.ConfigMap:
		w.configMap(o)
	case *corev1.Secret:
		w.secret(o)
	case *corev1.Pod:
		w.object("Pod", o)
		w.podSpec("spec", &o.Spec)
	case *appsv1.Deployment:
		w.object("Deployment", o)
		w.template("spec.template", &o.Spec.Template)
	case *appsv1.StatefulSet:
		w.object("StatefulSet", o)
		w.template("spec.template", &o.Spec.Template)
	case *appsv1.DaemonSet:
		w.object("DaemonSet", o)
		w.template("spec.template", &o.Spec.Template)
	case *batchv1.Job:
		w.object("Job", o)
		w.template("spec.template", &o.Spec.Template)
	case *batchv1.CronJob:
		w.object("CronJob", o)
		w.template("spec.jobTemplate.spec.template", &o.Spec.JobTemplate.Spec.Template)
	default:
		w.policies(o)
		w.traffic(o)
	}
	return w.found
}

func (w *walk) policies(o client.Object) {
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		w.networkPolicy(o)
	case *admissionv1.ValidatingWebhookConfiguration:
		w.object("ValidatingWebhookConfiguration", o)
		for i, h := range o.Webhooks {
			w.url(fmt.Sprintf("webhooks[%d].clientConfig.url", i), h.ClientConfig.URL)
		}
	case *admissionv1.MutatingWebhookConfiguration:
		w.object("MutatingWebhookConfiguration", o)
		for i, h := range o.Webhooks {
			w.url(fmt.Sprintf("webhooks[%d].clientConfig.url", i), h.ClientConfig.URL)
		}
	case *apiextensionsv1.CustomResourceDefinition:
		w.object("CustomResourceDefinition", o)
		if c := o.Spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil {
			w.url("spec.conversion.webhook.clientConfig.url", c.Webhook.ClientConfig.URL)
		}
	}
}

type walk struct {
	scanner *Scanner
	name    string
	// covered is what is added to be.
	covered bool
	found   []Reference
}

func (w *walk) object(kind string, o client.Object) { w.name = Name(kind, o) }

// Name is how a Reference names an object.
func Name(kind string, o client.Object) string {
	if o.GetNamespace() == "" {
		return kind + " " + o.GetName()
	}
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

func (w *walk) add(field, value string) {
	w.note(Reference{Object: w.name, Field: field, Value: value, Covered: w.covered})
}

func (w *walk) note(r Reference) {
	for _, have := range w.found {
		if have == r {
			return
		}
	}
	if len(w.found) < perObject {
		r.Value = strings.Clone(r.Value) // or it would keep all that it was cut from
		w.found = append(w.found, r)
	}
}

func (w *walk) text(field, text string) {
	for _, value := range w.scanner.Values(text) {
		w.add(field, value)
	}
}

func (w *walk) texts(field string, all []string) {
	for i, text := range all {
		w.text(fmt.Sprintf("%s[%d]", field, i), text)
	}
}

func (w *walk) values(field string, all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		w.text(fmt.Sprintf("%s[%s]", field, key), all[key])
	}
}

func (w *walk) url(field string, url *string) {
	if url != nil {
		w.text(field, *url)
	}
}

func (w *walk) configMap(o *corev1.ConfigMap) {
	w.object("ConfigMap", o)
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		field := fmt.Sprintf("data[%s]", key)
		w.text(field, o.Data[key])
		for _, zone := range w.scanner.Zones(o.Data[key]) {
			w.add(field, zone)
		}
	}
}

// secret notes under which keys something is found, never what.
func (w *walk) secret(o *corev1.Secret) {
	w.object("Secret", o)
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		text := string(o.Data[key])
		if len(w.scanner.Values(text)) > 0 || len(w.scanner.Zones(text)) > 0 {
			w.add(fmt.Sprintf("data[%s]", key), "")
		}
	}
}

func (w *walk) volume(kind string, o *corev1.PersistentVolume) {
	w.object(kind, o)
	src := &o.Spec.PersistentVolumeSource
	if v := src.NFS; v != nil {
		w.text("spec.nfs.server", v.Server)
	}
	if v := src.ISCSI; v != nil {
		w.text("spec.iscsi.targetPortal", v.TargetPortal)
		w.texts("spec.iscsi.portals", v.Portals)
	}
	if v := src.CSI; v != nil {
		w.text("spec.csi.volumeHandle", v.VolumeHandle)
		w.values("spec.csi.volumeAttributes", v.VolumeAttributes)
	}
	if v := src.CephFS; v != nil {
		w.texts("spec.cephfs.monitors", v.Monitors)
	}
	if v := src.RBD; v != nil {
		w.texts("spec.rbd.monitors", v.CephMonitors)
	}
	if v := src.FlexVolume; v != nil {
		w.values("spec.flexVolume.options", v.Options)
	}
	w.texts("spec.mountOptions", o.Spec.MountOptions)
}

func (w *walk) template(at string, t *corev1.PodTemplateSpec) {
	w.annotations(at+".metadata.annotations", t.Annotations)
	w.podSpec(at+".spec", &t.Spec)
}

func (w *walk) podSpec(at string, spec *corev1.PodSpec) {
	for i := range spec.InitContainers {
		w.container(fmt.Sprintf("%s.initContainers[%s]", at, spec.InitContainers[i].Name), &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		w.container(fmt.Sprintf("%s.containers[%s]", at, spec.Containers[i].Name), &spec.Containers[i])
	}
	for i, h := range spec.HostAliases {
		w.text(fmt.Sprintf("%s.hostAliases[%d].ip", at, i), h.IP)
	}
	if spec.DNSConfig != nil {
		w.texts(at+".dnsConfig.nameservers", spec.DNSConfig.Nameservers)
	}
	for i := range spec.Volumes {
		v, field := &spec.Volumes[i], fmt.Sprintf("%s.volumes[%s]", at, spec.Volumes[i].Name)
		if v.NFS != nil {
			w.text(field+".nfs.server", v.NFS.Server)
		}
		if v.ISCSI != nil {
			w.text(field+".iscsi.targetPortal", v.ISCSI.TargetPortal)
			w.texts(field+".iscsi.portals", v.ISCSI.Portals)
		}
		if v.CSI != nil {
			w.values(field+".csi.volumeAttributes", v.CSI.VolumeAttributes)
		}
	}
}

func (w *walk) container(at string, c *corev1.Container) {
	w.texts(at+".command", c.Command)
	w.texts(at+".args", c.Args)
	proxied := slices.ContainsFunc(c.Env, isProxy)
	for _, e := range c.Env {
		bypass := proxied && strings.EqualFold(e.Name, "no_proxy")
		for _, value := range w.scanner.Values(e.Value) {
			w.note(Reference{
				Object: w.name, Field: fmt.Sprintf("%s.env[%s]", at, e.Name), Value: value,
				Bypass: bypass && !w.scanner.bypassed(e.Value, isRange(value)),
			})
		}
	}
}

func (w *walk) networkPolicy(o *networkingv1.NetworkPolicy) {
	w.object("NetworkPolicy", o)
	var order []string
	together := map[string][]block{}
	add := func(ports []networkingv1.NetworkPolicyPort, direction, field string, b *networkingv1.IPBlock) {
		if b == nil {
			return
		}
		key := direction + portKey(ports)
		if together[key] == nil {
			order = append(order, key)
		}
		together[key] = append(together[key], block{field, b})
	}
	for i := range o.Spec.Ingress {
		for j, peer := range o.Spec.Ingress[i].From {
			add(o.Spec.Ingress[i].Ports, "ingress", fmt.Sprintf("spec.ingress[%d].from[%d].ipBlock", i, j), peer.IPBlock)
		}
	}
	for i := range o.Spec.Egress {
		for j, peer := range o.Spec.Egress[i].To {
			add(o.Spec.Egress[i].Ports, "egress", fmt.Sprintf("spec.egress[%d].to[%d].ipBlock", i, j), peer.IPBlock)
		}
	}
	for _, key := range order {
		w.ipBlocks(together[key])
	}
}

type block struct {
	field string
	*networkingv1.IPBlock
}

// portKey is the same for rules about the same ports, whose peers count together.
func portKey(ports []networkingv1.NetworkPolicyPort) string {
	body, err := json.Marshal(ports)
	if err != nil {
		panic(err) // they were read from JSON
	}
	return string(body)
}

func (b block) allowed() (*netipx.IPSet, error) {
	var set netipx.IPSetBuilder
	p, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil, err
	}
	set.AddPrefix(p)
	for _, text := range b.Except {
		if e, err := netip.ParsePrefix(text); err == nil {
			set.RemovePrefix(e)
		}
	}
	return set.IPSet()
}

// ipBlocks notes blocks of rules that treat the old ranges and the new ones differently.
func (w *walk) ipBlocks(all []block) {
	var together netipx.IPSetBuilder
	sets := map[int]*netipx.IPSet{}
	for i, b := range all {
		if set, err := b.allowed(); err == nil {
			sets[i] = set
			together.AddSet(set)
		}
	}
	union, err := together.IPSet()
	w.covered = err == nil && w.even(union)
	defer func() { w.covered = false }()
	for i, b := range all {
		if sets[i] == nil || w.even(sets[i]) {
			continue
		}
		w.add(b.field, b.CIDR)
		for n, text := range b.Except {
			if e, err := netip.ParsePrefix(text); err == nil && (w.scanner.fromSet.OverlapsPrefix(e) || w.scanner.toSet.OverlapsPrefix(e)) {
				w.add(fmt.Sprintf("%s.except[%d]", b.field, n), text)
			}
		}
	}
}

// even reports whether a set treats old and new ranges alike, in each family.
func (w *walk) even(allowed *netipx.IPSet) bool {
	for _, family := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		from, to := ofFamily(family, w.scanner.from), ofFamily(family, w.scanner.to)
		before, whole1 := share(allowed, from)
		after, whole2 := share(allowed, to)
		if !whole1 || !whole2 || before != after {
			return false
		}
	}
	return true
}

// share says whether ranges are in a set, and whether that is the same for all of their addresses.
func share(allowed *netipx.IPSet, prefixes []netip.Prefix) (in, whole bool) {
	some, all := false, true
	for _, p := range prefixes {
		some = some || allowed.OverlapsPrefix(p)
		all = all && allowed.ContainsPrefix(p)
	}
	return some, !some || all
}
