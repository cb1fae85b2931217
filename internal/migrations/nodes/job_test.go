//go:build apiserver

package nodes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// populate makes one workload of each kind, and what comes from outside.
func (f *fixture) populate() *corev1.Service {
	f.Helper()
	f.Deployment("web", 3)
	f.Deployment("host", 1, func(s *corev1.PodSpec) { s.HostNetwork = true })
	f.StatefulSet("db", 2)
	f.DaemonSet("log", 2)
	f.Budget("web", 2)
	return f.edge("web")
}

func (f *fixture) allOn(nodes string) {
	f.Helper()
	f.on(nodes, "web", 3)
	f.on(nodes, "host", 1)
	f.on(nodes, "db", 2)
}

func atFinish(m *v1alpha1.Migration) { m.Spec.Nodes.Terminate.When = v1alpha1.TerminateAtFinish }

// TestReaderSees: who may only look gets every finding, and what is missing to operate is one.
func TestReaderSees(t *testing.T) {
	f := setup(t)
	f.operator = migrationtest.Reader(t, server, Roles())
	f.with(f.job.Migration)
	p, err := f.job.Look(t.Context())
	f.Must(err)
	if !migrationtest.Says(p.Findings, "RP3001", "missing permission: ") {
		t.Errorf("findings: %+v", p.Findings)
	}
}

// TestApplyRollbackApply keeps old nodes until finish, so that there is something to go back to.
func TestApplyRollbackApply(t *testing.T) {
	f := setup(t, atFinish)
	f.populate()
	f.Must(f.apply())
	f.allOn("c d")
	if got := f.nodes(); got != "a:NoSchedule b:NoSchedule c d" {
		t.Errorf("nodes after apply: %s", got)
	}
	f.Must(f.rollback())
	f.allOn("a b")
	if got := f.nodes(); got != "a b c:NoSchedule d:NoSchedule" {
		t.Errorf("nodes after rollback: %s", got)
	}
	f.Fails(f.finish(), "rolled back")
	f.Must(f.apply())
	f.allOn("c d")
	f.Must(f.finish())
	if got := f.nodes(); got != "c d" {
		t.Errorf("nodes after finish: %s", got)
	}
	const leave = "DaemonSets behind Services: TestDaemonSetsLeaveTheirServices"
	// What agents take, TestWatched needs.
	f.requests.Took(t, Roles().Of(access.View, access.Operate), map[string]string{
		"get validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze-deploys": "a freeze that is there: TestFrozenThereAndBack",
		"patch pods":                                       leave,
		"list endpointslices.discovery.k8s.io":             leave,
		"create endpointslices.discovery.k8s.io":           leave,
		"delete endpointslices.discovery.k8s.io":           leave,
		"list endpointslices.discovery.k8s.io in default":  "a control plane that moves",
		"delete nodes":                                     "machines whose owners leave the Node",
		"delete pods":                                      "pods that spec.nodes.drain.force names",
		"get jobs.batch":                                   "pods of Jobs that are evicted",
		"get persistentvolumeclaims":                       "pods with volumes",
		"list networkpolicies.crd.projectcalico.org":       "clusters that have policies of Calico",
		"list globalnetworkpolicies.crd.projectcalico.org": "clusters that have policies of Calico",
	})
}
