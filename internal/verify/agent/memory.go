package agent

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// mostRemembered bounds the memory to the latest clients.
const mostRemembered = 4 * mostClients

// memory keeps clients of old addresses, which connection tracking forgets within minutes: the
// nightly ones are those that remain. It keeps the workload where known, since a pod's name and
// address do not come again.
type memory struct {
	known map[memoryKey]*remembered
	// of has the workloads of pods by namespace/name, as they were when first seen: a pod that
	// leaves its Services before it ends loses its labels, and its owner with them.
	of map[string]string
}

type memoryKey struct{ address, protocol, who string }

type remembered struct {
	client v1alpha1.OldAddressClient
	first  time.Time
	// gap is the longest time between two uses.
	gap time.Duration
}

func keyOf(c *v1alpha1.OldAddressClient) memoryKey {
	return memoryKey{c.Address, c.Protocol, cmp.Or(c.Workload, c.Pod, c.Source)}
}

// add takes in present clients, except while resolvers' caches excuse them, and drops those of
// addresses that are no longer old.
func (m *memory) add(found []v1alpha1.OldAddressClient, left map[netip.Addr]departure) {
	maps.DeleteFunc(m.known, func(k memoryKey, _ *remembered) bool {
		_, ok := left[host(k.address)]
		return !ok
	})
	// Two pods of a workload are one client: their uses count in the order of time.
	for _, c := range slices.SortedFunc(slices.Values(found), func(a, b v1alpha1.OldAddressClient) int {
		return a.LastSeen.Compare(b.LastSeen.Time)
	}) {
		if d, ok := left[host(c.Address)]; ok && !c.LastSeen.Time.Before(d.expired) {
			m.use(c)
		}
	}
	if many := len(m.known) - mostRemembered; many > 0 {
		for _, r := range m.newest()[mostRemembered:] {
			delete(m.known, keyOf(&r.client))
		}
	}
}

// workload is what a pod belongs to, which is of a workload now, or of none.
func (m *memory) workload(pod, now string) string {
	if pod == "" || now == "" {
		return m.of[pod]
	}
	if m.of == nil {
		m.of = map[string]string{}
	}
	if m.of[pod] == "" {
		m.of[pod] = now
	}
	return m.of[pod]
}

// forget drops pods that have gone, as far as they cannot come again.
func (m *memory) forget(gone func(pod string) bool) {
	maps.DeleteFunc(m.known, func(_ memoryKey, r *remembered) bool { return endless(&r.client, gone) })
	used := map[string]bool{}
	for _, r := range m.known {
		used[r.client.Pod] = true
	}
	maps.DeleteFunc(m.of, func(pod, _ string) bool { return gone(pod) && !used[pod] })
}

func (m *memory) use(c v1alpha1.OldAddressClient) {
	c.Open = 0
	key := keyOf(&c)
	have := m.known[key]
	if have == nil {
		if m.known == nil {
			m.known = map[memoryKey]*remembered{}
		}
		m.known[key] = &remembered{client: c, first: c.LastSeen.Time}
		return
	}
	if between := c.LastSeen.Sub(have.client.LastSeen.Time); between > 0 {
		have.gap, have.client = max(have.gap, between), c
	}
}

func (m *memory) recall(reported []v1alpha1.OldAddressClient) {
	for _, c := range reported {
		c.Workload = m.workload(c.Pod, c.Workload)
		if c.FirstSeen == nil { // it was not remembered
			continue
		}
		now := m.known[keyOf(&c)]
		m.use(c)
		then := m.known[keyOf(&c)]
		if now != nil && now.client.LastSeen.After(c.LastSeen.Time) {
			then.gap = max(then.gap, now.first.Sub(c.LastSeen.Time))
		}
		if c.FirstSeen.Time.Before(then.first) {
			then.first = c.FirstSeen.Time
		}
		if c.LongestGap != nil {
			then.gap = max(then.gap, c.LongestGap.Duration)
		}
	}
}

// complete merges what is remembered, as far as a report has room; forgotten counts the rest.
func (m *memory) complete(now []v1alpha1.OldAddressClient) (all []v1alpha1.OldAddressClient, forgotten int) {
	seen := map[memoryKey]bool{}
	for _, c := range now {
		key := keyOf(&c)
		if have := m.known[key]; have != nil {
			have.note(&c)
		}
		seen[key] = true
		all = append(all, c)
	}
	for _, r := range m.newest() {
		switch {
		case seen[keyOf(&r.client)]:
		case len(all) >= mostClients:
			forgotten++
		default:
			c := r.client
			r.note(&c)
			all = append(all, c)
		}
	}
	return all, forgotten
}

func (r *remembered) note(c *v1alpha1.OldAddressClient) {
	first := metav1.NewMicroTime(r.first)
	c.FirstSeen = &first
	if gap := r.gap.Round(time.Second); gap > 0 {
		c.LongestGap = &metav1.Duration{Duration: gap}
	}
}

func (m *memory) newest() []*remembered {
	return slices.SortedFunc(maps.Values(m.known), func(a, b *remembered) int {
		return cmp.Or(b.client.LastSeen.Compare(a.client.LastSeen.Time), strings.Compare(a.client.Address, b.client.Address),
			strings.Compare(a.client.Protocol, b.client.Protocol), strings.Compare(a.client.Source, b.client.Source))
	})
}

func host(address string) netip.Addr {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr()
}

// cronJobOf is the CronJob of a Job, whose name ends with its due minute (getJobName in
// k8s.io/kubernetes pkg/controller/cronjob/utils.go).
func cronJobOf(job string) (name string, ok bool) {
	const shortest = 8 // since 1990
	i := strings.LastIndexByte(job, '-')
	if i < 0 || len(job)-i-1 < shortest || strings.Trim(job[i+1:], "0123456789") != "" {
		return "", false
	}
	return job[:i], true
}

// workloadsOf are pods' owners as kind, namespace and name, by the pod's namespace/name.
func workloadsOf(pods []*corev1.Pod) map[string]string {
	all := map[string]string{}
	for _, pod := range pods {
		owner := metav1.GetControllerOf(pod)
		if owner == nil {
			continue
		}
		kind, name := owner.Kind, owner.Name
		hash := pod.Labels[hashLabel]
		cronJob, made := cronJobOf(name)
		switch {
		case kind == "ReplicaSet" && hash != "" && strings.HasSuffix(name, "-"+hash):
			kind, name = "Deployment", strings.TrimSuffix(name, "-"+hash)
		case kind == "Job" && made:
			kind, name = "CronJob", cronJob
		}
		all[pod.Namespace+"/"+pod.Name] = kind + " " + pod.Namespace + "/" + name
	}
	return all
}

const hashLabel = "pod-template-hash"
