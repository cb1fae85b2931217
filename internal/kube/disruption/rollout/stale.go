// Package rollout renews pods that carry addresses from before a change, by restarting their owners
// or evicting them, within their PodDisruptionBudgets.
package rollout

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/readiness"
)

// Changes are the moments since which new pods get new addresses. Zero means that nothing changed.
type Changes struct {
	KubernetesMovedAt time.Time
	// Services are, by namespace, when new pods were given addresses that Services have left.
	Services map[string][]Span
	// DNSSince is when every kubelet was known to give pods the new cluster DNS address.
	DNSSince time.Time
	// Addresses are ranges that pods shall leave, AddressesUntil when a new pod could last get one.
	Addresses      []netip.Prefix
	AddressesUntil time.Time
	Leave          string
	// MadeBefore, in whole seconds, renews pods with a network of their own that are older.
	MadeBefore time.Time
	// Migration is the one whose released pods are brought to their end; empty for none.
	Migration string
	// Since is when old addresses came up: younger containers cannot have them. Zero is any age.
	Since time.Time
	// Slack is added to each moment: clocks differ, and kubelets hear of changes a little later.
	Slack time.Duration
}

// Span is a time in which new pods were given an address that they shall leave.
type Span struct {
	// From is when the address was given out; zero, if that is not known.
	From, Until time.Time
}

// Spans joins those that overlap, in order of time.
func Spans(all []Span) []Span {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Span) int { return a.From.Compare(b.From) })
	var joined []Span
	for _, s := range all {
		last := len(joined) - 1
		if last < 0 || s.From.After(joined[last].Until) {
			joined = append(joined, s)
			continue
		}
		if s.Until.After(joined[last].Until) {
			joined[last].Until = s.Until
		}
	}
	return joined
}

// covers reports whether a container started then, in whole seconds, was given the address.
func (s Span) covers(start time.Time, slack time.Duration) bool {
	return start.Add(time.Second+slack).After(s.From) && !start.After(s.Until.Add(slack))
}

// what describes the addresses that pods shall not have.
func (c *Changes) what() string {
	if !c.MadeBefore.IsZero() {
		return CarriesAge
	}
	if len(c.Addresses) == 0 {
		return "old addresses"
	}
	return fmt.Sprintf("addresses of %v", c.Addresses)
}

// Parts of a pod that can carry an address.
const (
	CarriesKubernetes = "the old address of the Service default/kubernetes in its environment"
	CarriesServices   = "old addresses of its namespace's Services in its environment"
	CarriesDNS        = "the old address of the cluster DNS in its resolv.conf"
	CarriesAddress    = "an address of the old range"
	CarriesNode       = "a place on a node that is emptied"
	CarriesAge        = "an earlier start"
)

// staleReference is something old that a pod carries, and until when pods were given it.
type staleReference struct {
	text  string
	until time.Time
}

// Stale says which old addresses a pod carries; none, if it has ended.
//
// The environment of a container has the Service default/kubernetes always, and those of the
// namespace unless enableServiceLinks is false (getServiceEnvVarMap in k8s.io/kubernetes
// pkg/kubelet/kubelet_pods.go), so the oldest running container counts. resolv.conf is made with
// the sandbox, and names the cluster DNS for dnsPolicy ClusterFirst off the host's network and
// ClusterFirstWithHostNet (getPodDNSType in pkg/kubelet/network/dns/dns.go).
//
// The environment of replumb's own pods does not count: they use the API servers' own addresses.
// Nor does that of pods which are known not to use it.
func Stale(pod *corev1.Pod, c Changes) []string {
	var reasons []string
	for _, b := range staleReferences(pod, c) {
		reasons = append(reasons, b.text)
	}
	return reasons
}

func staleReferences(pod *corev1.Pod, c Changes) []staleReference {
	if ended(pod) || newestStart(pod).Before(c.Since.Truncate(time.Second)) {
		return nil
	}
	var all []staleReference
	weigh := func(text string, since, change time.Time) {
		until := change.Add(c.Slack)
		if !change.IsZero() && !since.IsZero() && !since.After(until) {
			all = append(all, staleReference{text: text, until: until})
		}
	}
	if hasAddress(pod, c.Addresses) {
		all = append(all, staleReference{text: CarriesAddress, until: c.AddressesUntil.Add(c.Slack)})
	}
	if c.Leave != "" && pod.Spec.NodeName == c.Leave {
		// Cut to whole seconds, as the time of the restart that made it is.
		all = append(all, staleReference{text: CarriesNode, until: pod.CreationTimestamp.Add(time.Second + c.Slack)})
	}
	if pod.Namespace == v1alpha1.SystemNamespace {
		return all
	}
	if c.outlived(pod) {
		all = append(all, staleReference{text: CarriesAge, until: c.MadeBefore})
	}
	weigh(CarriesKubernetes, usedSince(pod), c.KubernetesMovedAt)
	if until := c.servicesUntil(pod); !until.IsZero() {
		all = append(all, staleReference{text: CarriesServices, until: until})
	}
	if usesClusterDNS(pod) && pod.Status.StartTime != nil {
		weigh(CarriesDNS, pod.Status.StartTime.Time, c.DNSSince)
	}
	return all
}

func (c *Changes) outlived(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && pod.CreationTimestamp.Time.Before(c.MadeBefore)
}

// servicesUntil is when the last address in a pod's environment was left; zero, if it has none.
func (c *Changes) servicesUntil(pod *corev1.Pod) (until time.Time) {
	if links := pod.Spec.EnableServiceLinks; links != nil && !*links || pod.Annotations[annotationUnread] == unreadAll {
		return until
	}
	for _, start := range containerStarts(pod) {
		for _, span := range c.Services[pod.Namespace] {
			if span.covers(start, c.Slack) && span.Until.Add(c.Slack).After(until) {
				until = span.Until.Add(c.Slack)
			}
		}
	}
	return until
}

// hasAddress reports whether a pod off the host's network has an address in one of the ranges.
func hasAddress(pod *corev1.Pod, ranges []netip.Prefix) bool {
	if pod.Spec.HostNetwork {
		return false
	}
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		a, err := netip.ParseAddr(ip.IP)
		return err == nil && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	})
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// oldestContainer is when the oldest running container was started; zero, if none runs.
func oldestContainer(pod *corev1.Pod) time.Time {
	var oldest time.Time
	for _, start := range containerStarts(pod) {
		if oldest.IsZero() || start.Before(oldest) {
			oldest = start
		}
	}
	return oldest
}

// usedSince is since when a pod uses KUBERNETES_SERVICE_HOST in its environment; zero, if it does
// not. Static pods of the system are told addresses in flags and files, whoever installs them:
// they get no token, so that none calls the API by its environment.
func usedSince(pod *corev1.Pod) time.Time {
	_, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if static && pod.Namespace == metav1.NamespaceSystem || pod.Annotations[annotationUnread] != "" {
		return time.Time{}
	}
	return oldestContainer(pod)
}

func containerStarts(pod *corev1.Pod) []time.Time {
	var all []time.Time
	for _, statuses := range [][]corev1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range statuses {
			if running := statuses[i].State.Running; running != nil {
				all = append(all, running.StartedAt.Time)
			}
		}
	}
	return all
}

func newestStart(pod *corev1.Pod) time.Time {
	var newest time.Time
	if pod.Status.StartTime != nil {
		newest = pod.Status.StartTime.Time
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if running := statuses[i].State.Running; running != nil && running.StartedAt.After(newest) {
				newest = running.StartedAt.Time
			}
		}
	}
	return newest
}

func usesClusterDNS(pod *corev1.Pod) bool {
	switch pod.Spec.DNSPolicy {
	case corev1.DNSClusterFirstWithHostNet:
		return true
	case corev1.DNSClusterFirst, "":
		return !pod.Spec.HostNetwork
	}
	return false
}

func podReady(pod *corev1.Pod) bool {
	ready, _ := readiness.Pod(pod)
	return ready
}

// touched reports whether something at this time, in this namespace, can answer one of the changes.
func (c Changes) touched(namespace string, at time.Time) bool {
	changes := []time.Time{c.KubernetesMovedAt, c.DNSSince, c.AddressesUntil, c.MadeBefore}
	for _, span := range c.Services[namespace] {
		changes = append(changes, span.Until)
	}
	for _, change := range changes {
		if !change.IsZero() && at.After(change) {
			return true
		}
	}
	return false
}
