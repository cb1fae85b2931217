package e2e

import (
	"testing"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// testGuardedServices moves the Services of pods that NetworkPolicies guard, and takes them back. Clients on every node call all the time: what
// is allowed is answered and what is forbidden is not, by name and by the old address, while addresses change and after. The control of what is
// denied takes the policies away; that of what is answered is testWholeRange's.
func testGuardedServices(t *testing.T, l *lab.Lab) {
	const namespace = "guarded-services"
	s := guarded(t, l, namespace)
	t.Cleanup(func() { removeNamespaces(t, l, namespace) })
	s.moveAndReturn(t, l, namespace, writeMigration(t, namespace, newRange, "", drain))
	requireNoTrace(t, l)
	requireVerdictsAreThePolicies(t, l, s, namespace)
}

// moveAndReturn moves the Services of a namespace that policies guard by a migration of its name, and takes them back.
func (s *shop) moveAndReturn(t *testing.T, l *lab.Lab, namespace, file string) {
	t.Helper()
	names := triedByName(t, l, namespace)
	before := servicesOf(t, l, namespace)
	for _, way := range []struct {
		what string
		args []string
		to   string
	}{
		{"the move of guarded Services", []string{"apply", "-f", file}, newRange},
		{"the way back of guarded Services", []string{"rollback", namespace, "--yes"}, oldRange},
	} {
		followed := names.during(t, way.what+", by name", func() {
			moved := s.during(t, way.what, func() { replumb(t, l, way.args...) })
			moved.requireNothingLost(t, traffic.Permitted)
			moved.requireDenied(t)
		})
		followed.requireNothingLost(t, traffic.Permitted)
		followed.requireDenied(t)
		requireServicesIn(t, servicesOf(t, l, namespace), way.to)
	}
	requireSame(t, before, servicesOf(t, l, namespace))
}

// triedByName starts guests on every node that call by name what they may call, and what they may not: they follow a Service to its new address.
func triedByName(t *testing.T, l *lab.Lab, namespace string) *shop {
	t.Helper()
	open := traffic.Callee{Name: workload.GuestsMay, Address: servicesOf(t, l, namespace)[workload.GuestsMay].Spec.ClusterIP}
	shut := traffic.Callee{Name: "cart", Address: "cart"}
	calls := traffic.Call(namespace, []traffic.Callee{open}, policyRates()).
		AndTry([]traffic.Callee{shut}, policyRates()).
		As(workload.Guest(), nil)
	calls.Client = "follower"
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls)
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch, prompt: traffic.OfPods()}
	s.awaitVerdicts(t)
	return s
}
