//go:build apiserver && long

package lossguard_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// soaking is a soak step against a real API server, with a clock of its own and agents that report
// when they are asked to.
type soaking struct {
	*testing.T
	*lossguard.Soak
	server *apitest.Server
	clock  time.Time
}

func (s *soaking) Deadline() (time.Time, bool) { return s.T.Deadline() }

// node makes a node, or changes whether it is ready.
func (s *soaking) node(name string, ready corev1.ConditionStatus) {
	s.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(s.T, client.IgnoreAlreadyExists(s.server.Create(s.Context(), n.DeepCopy())))
	must(s.T, s.server.Get(s.Context(), client.ObjectKeyFromObject(n), n))
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	must(s.T, s.server.Status().Update(s.Context(), n))
}

// report lets the agent of a node report once more, with changes to its report.
func (s *soaking) report(node string, changes ...func(*v1alpha1.NodeReportStatus)) {
	s.Helper()
	r := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{v1alpha1.LabelMigration: "move"}}}
	must(s.T, client.IgnoreAlreadyExists(s.server.Create(s.Context(), r.DeepCopy())))
	must(s.T, s.server.Get(s.Context(), client.ObjectKeyFromObject(r), r))
	if len(r.Status.Agents) == 0 {
		r.Status.Agents = []v1alpha1.AgentReport{
			{Origin: v1alpha1.FromPod, Instance: "pod", Sequence: 7}, {Origin: v1alpha1.FromHost, Instance: "one", Sequence: 0},
		}
	}
	r.Status.Agents[1].Sequence++
	for i := range r.Status.Agents {
		r.Status.Agents[i].ReportedAt = metav1.NewMicroTime(s.clock)
	}
	for _, change := range changes {
		change(&r.Status)
	}
	must(s.T, s.server.Status().Update(s.Context(), r))
	for _, c := range r.Status.Clients {
		s.pod(c.Pod)
	}
}

// pod makes one that does not run; without it, nobody would be waited for.
func (s *soaking) pod(key string) {
	s.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	must(s.T, client.IgnoreAlreadyExists(s.server.Create(s.Context(), pod)))
}

// web is a pod that is a client: open connections, and when it was last seen by the clock of its
// node.
func web(n, open int, seen time.Time) func(*v1alpha1.NodeReportStatus) {
	return func(st *v1alpha1.NodeReportStatus) {
		st.Clients = append(st.Clients, v1alpha1.OldAddressClient{
			Address: "10.96.0.5:80", Protocol: "TCP", Service: "shop/cart", Pod: fmt.Sprintf("shop/web-%d", n),
			Source: fmt.Sprintf("10.244.1.%d", n), LastSeen: metav1.NewMicroTime(seen), Open: open,
		})
	}
}

// noClients empties the list of clients, before others are put in it.
func noClients(st *v1alpha1.NodeReportStatus) { st.Clients, st.MoreClients = nil, 0 }

func (s *soaking) pass(d time.Duration) { s.clock = s.clock.Add(d) }

// waits looks, and expects to be asked to look again.
func (s *soaking) waits(want string) {
	s.Helper()
	err := s.Verify(s.Context())
	if err == nil || !engine.Retryable(err) || err.Error() != want {
		s.Errorf("%s: %v, want to wait: %s", s.clock.Format("04:05"), err, want)
	}
}

func (s *soaking) over() {
	s.Helper()
	if err := s.Verify(s.Context()); err != nil {
		s.Errorf("%s: %v", s.clock.Format("04:05"), err)
	}
}

func (s *soaking) fails(want string) {
	s.Helper()
	err := s.Verify(s.Context())
	if err == nil || engine.Retryable(err) || err.Error() != want {
		s.Errorf("%s: %v, want the end: %s", s.clock.Format("04:05"), err, want)
	}
}

// quiet lets ten seconds pass at a time, in which the nodes report; nothing comes of it.
func (s *soaking) quiet(d time.Duration, nodes ...string) {
	s.Helper()
	for range d / (10 * time.Second) {
		s.pass(10 * time.Second)
		for _, n := range nodes {
			s.report(n)
		}
		s.waits(still)
	}
}

const still = "no client is seen to use an old address: waiting until that has been so for 1m0s"
