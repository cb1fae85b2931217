//go:build apiserver && long

package lossguard_test

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// visitor is one that comes now and then, as its node remembers it.
func visitor(seen, first time.Time, gap time.Duration) func(*v1alpha1.NodeReportStatus) {
	return func(st *v1alpha1.NodeReportStatus) {
		began := metav1.NewMicroTime(first)
		c := v1alpha1.OldAddressClient{
			Address: "10.96.0.5:80", Protocol: "TCP", Service: "shop/cart", Pod: "shop/nightly-7", Source: "10.244.1.7",
			Workload: "CronJob shop/nightly", LastSeen: metav1.NewMicroTime(seen), FirstSeen: &began,
		}
		if gap > 0 {
			c.LongestGap = &metav1.Duration{Duration: gap}
		}
		st.Clients = append(st.Clients, c)
	}
}

// soakVisits has a client that comes every ten minutes, and finish begin right after it has gone. A
// minute without it, which is all that was asked for before, would be over long before it comes
// again.
func soakVisits(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	first, seen := s.clock.Add(-time.Hour), s.clock.Add(-6*time.Minute)
	s.report("a", visitor(seen, first, 10*time.Minute))
	s.waits("1 client of old addresses may come back: pod shop/nightly-7 on node a at 10.96.0.5:80 (service shop/cart), " +
		"last seen 6m0s ago and away for up to 10m0s")
	for range 4 { // longer than the soak
		s.pass(time.Minute)
		s.report("a")
		if err := s.Verify(s.Context()); err == nil {
			s.Fatal("over before the client came back")
		}
	}
	s.report("a", noClients, visitor(s.clock, first, 10*time.Minute))
	s.pass(10 * time.Second)
	s.waits("1 client still uses old addresses: pod shop/nightly-7 on node a at 10.96.0.5:80 (service shop/cart), no connection open")
	for range 10 {
		s.pass(time.Minute)
		s.report("a")
		if err := s.Verify(s.Context()); err == nil {
			s.Fatal("over while the client may come back")
		}
	}
	s.pass(2 * time.Minute)
	s.report("a")
	s.over()
}

// soakRemembered has one that has been away for far longer than ever before, and one that came
// once: they are not in the way.
func soakRemembered(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.report("a", visitor(s.clock.Add(-26*time.Hour), s.clock.Add(-40*time.Hour), time.Hour), web(1, 0, s.clock.Add(-2*time.Hour)))
	s.waits(still)
	s.quiet(50*time.Second, "a")
	for range 2 {
		s.pass(10 * time.Second)
		s.report("a")
		if err := s.Verify(s.Context()); err != nil && !strings.Contains(err.Error(), "next report of node a") {
			s.Errorf("waits for %v", err)
		}
	}
	s.over()
}

// soakWanders has a job that runs on another node each time: no node has seen it twice.
func soakWanders(s *soaking) {
	s.node("a", corev1.ConditionTrue)
	s.node("b", corev1.ConditionTrue)
	s.report("a", visitor(s.clock.Add(-50*time.Minute), s.clock.Add(-50*time.Minute), 0))
	s.report("b", visitor(s.clock.Add(-20*time.Minute), s.clock.Add(-20*time.Minute), 0))
	s.waits("1 client of old addresses may come back: pod shop/nightly-7 on node b at 10.96.0.5:80 (service shop/cart), " +
		"last seen 20m0s ago and away for up to 30m0s")
	for range 12 {
		s.pass(time.Minute)
		s.report("a")
		s.report("b")
		if s.clock.Minute() < 11 {
			if err := s.Verify(s.Context()); err == nil {
				s.Fatal("over too early")
			}
		} else if err := s.Verify(s.Context()); err != nil && !strings.Contains(err.Error(), "next report") {
			s.Errorf("%s: %v", s.clock.Format("04:05"), err)
		}
	}
	s.report("a")
	s.report("b")
	s.over()
}
