package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// night is when everything in these tests begins.
func night() time.Time { return time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC) }

func nightly(pod string, at time.Time) v1alpha1.OldAddressClient {
	return v1alpha1.OldAddressClient{
		Address: "10.96.0.9:80", Protocol: "TCP", Service: "shop/cart", Pod: "shop/" + pod, Source: "10.244.0." + fmt.Sprint(at.Day()),
		Workload: "CronJob shop/nightly", LastSeen: metav1.NewMicroTime(at),
	}
}

// left is what these tests' Service has left at the beginning.
func left() map[netip.Addr]departure {
	return map[netip.Addr]departure{netip.MustParseAddr("10.96.0.9"): {service: "shop/cart", expired: night()}}
}

// TestMemoryOfRareClients: a job that comes once a night is known in the morning, and by how long
// it was away, though each night it is another pod, and the agent another one too. Connection
// tracking alone, the control, knows of none.
func TestMemoryOfRareClients(t *testing.T) {
	m := &memory{}
	for day := range 3 {
		m.add([]v1alpha1.OldAddressClient{nightly(fmt.Sprintf("nightly-%d", day), night().Add(time.Duration(day)*24*time.Hour))}, left())
		m.add(nil, left()) // the hours between
		reported, _ := m.complete(nil)
		m = &memory{}
		m.recall(reported)
	}
	all, forgotten := m.complete(nil)
	if len(all) != 1 || forgotten != 0 {
		t.Fatalf("remembers %+v, forgot %d", all, forgotten)
	}
	c := all[0]
	if c.Pod != "shop/nightly-2" || c.LongestGap == nil || c.LongestGap.Duration != 24*time.Hour || !c.FirstSeen.Time.Equal(night()) {
		t.Errorf("remembers %+v", c)
	}
	m.add(nil, nil)
	if all, _ := m.complete(nil); len(all) > 0 {
		t.Errorf("the address leads nowhere any more, and %+v is remembered", all)
	}
	if all, _ := (&memory{}).complete(nil); len(all) > 0 {
		t.Errorf("without a memory, %+v", all)
	}
}

func TestMemoryBeginsWhenResolversHaveForgotten(t *testing.T) {
	m := &memory{}
	m.add([]v1alpha1.OldAddressClient{nightly("early", night().Add(-time.Second))}, left())
	if all, _ := m.complete(nil); len(all) > 0 {
		t.Errorf("remembers %+v", all)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m := &memory{}
	var many []v1alpha1.OldAddressClient
	for i := range mostRemembered + 10 {
		c := nightly("web", night().Add(time.Duration(i)*time.Second))
		c.Workload = fmt.Sprintf("Deployment shop/web-%d", i)
		many = append(many, c)
	}
	m.add(many, left())
	all, forgotten := m.complete(many[:1])
	if len(all) != mostClients || len(m.known) != mostRemembered || forgotten != mostRemembered-mostClients+1 {
		t.Errorf("reports %d, remembers %d, forgot %d", len(all), len(m.known), forgotten)
	}
	if all[1].Workload != many[len(many)-1].Workload {
		t.Errorf("the latest is %s", all[1].Workload)
	}
}

// TestPodThatLeavesFirstIsOneClient: it loses labels and owner before it ends, and stays a client
// of the workload that it was of. When it has gone, the report says so.
func TestPodThatLeavesFirstIsOneClient(t *testing.T) {
	yes, now := true, time.Now()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "coredns-x", Labels: map[string]string{hashLabel: "5d8f"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "coredns-5d8f", Controller: &yes}},
		},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.3"}}},
	}
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bare"}}
	svc := service("shop", "cart", newAt, movedAt(now.Add(-time.Hour).Format(time.RFC3339Nano)))
	s := view{migration: migration(), services: []*corev1.Service{with(svc, oldAt)}, ranges: moveRanges(), listed: true, podsListed: true}
	svc.Annotations[v1alpha1.AnnotationOldIP], svc.Annotations[v1alpha1.AnnotationTargetIP] = oldAt, newAt
	uses := func(pod string, at time.Time) v1alpha1.OldAddressClient {
		return v1alpha1.OldAddressClient{Address: oldAt + ":443", Protocol: "TCP", Pod: pod, Source: "10.244.1.3", LastSeen: metav1.NewMicroTime(at)}
	}
	flows := &fakeFlows{}
	c := &clients{flows: flows}
	looks := func(pods ...*corev1.Pod) []v1alpha1.OldAddressClient {
		s.pods = nil
		for _, p := range pods {
			s.pods = append(s.pods, shrinkPod(p))
		}
		c.look(s)
		list, _, err := reportOf(c)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	flows.list = []v1alpha1.OldAddressClient{uses("kube-system/coredns-x", now), uses("shop/bare", now)}
	looks(pod, bare)
	pod.Labels = nil
	flows.list[0] = uses("kube-system/coredns-x", now.Add(time.Minute))
	looks(pod, bare)
	pod.OwnerReferences = nil
	flows.list[0] = uses("kube-system/coredns-x", now.Add(2*time.Minute))
	if list := looks(pod, bare); len(list) != 2 || list[0].Workload != "Deployment kube-system/coredns" || list[0].Gone {
		t.Errorf("clients %+v", list)
	}
	if list := looks(); len(list) != 2 || !list[0].Gone || !list[1].Gone {
		t.Errorf("with pods that have gone: %+v", list)
	}
	flows.list = nil
	if list := looks(); len(list) != 1 || list[0].Workload == "" || !list[0].Gone || list[0].LongestGap.Duration != time.Minute {
		t.Errorf("what may come again: %+v", list)
	}
}

func TestWorkloads(t *testing.T) {
	yes := true
	for want, owner := range map[string]metav1.OwnerReference{
		"Deployment shop/web":        {Kind: "ReplicaSet", Name: "web-5d8f", Controller: &yes},
		"CronJob shop/nightly":       {Kind: "Job", Name: "nightly-29384720", Controller: &yes},
		"Job shop/once":              {Kind: "Job", Name: "once", Controller: &yes},
		"Job shop/once-2026":         {Kind: "Job", Name: "once-2026", Controller: &yes},
		"StatefulSet shop/db":        {Kind: "StatefulSet", Name: "db", Controller: &yes},
		"ReplicaSet shop/other-9999": {Kind: "ReplicaSet", Name: "other-9999", Controller: &yes},
		"":                           {Kind: "ConfigMap", Name: "c"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace:       "shop",
			Name:            "p",
			Labels:          map[string]string{hashLabel: "5d8f", "app": "web"},
			OwnerReferences: []metav1.OwnerReference{owner},
		}}
		if got := workloadsOf([]*corev1.Pod{shrinkPod(pod)})["shop/p"]; got != want {
			t.Errorf("%s %s: %q, want %q", owner.Kind, owner.Name, got, want)
		}
	}
}
