package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestNeighboursLoseNothing moves every Service, the cluster's own included, and moves them back, beside software that watches Services: 100
// requests a second go through Traefik, 100 to an address of MetalLB, 10 to metrics-server by way of the API servers, a webhook that fails
// closed is asked about pods and Services, a Rollout switches, and Flux reconciles every 10 s. Nothing may be lost, refused, unavailable or
// changed back. The control hops a Service behind Traefik without any care, and deletes and recreates one: both must lose.
func TestNeighboursLoseNothing(t *testing.T) {
	l := bringUp(t, withNeighbours(highlyAvailable("e2e-beside")))
	n := newNeighbours(t, l)
	t.Cleanup(func() { n.logNeighbours() }) // before the lab goes
	n.standGuard()
	n.await("Flux applies", func() error { return n.fluxed(0) })
	n.await("the Rollout leads its Service", func() error {
		_, err := n.colour()
		return err
	})
	s := n.callFromOutside(20, 100)
	seen := watchHops(t.Context(), l.Client())
	file := n.writeMove()

	n.steadily(s, seen, "nothing", func() { n.wait(10 * time.Second) })
	n.steadily(s, seen, "the whole move", func() { attend(t, l, newRange, 0, "apply", "-f", file) })
	n.requireAllMoved(newRange)
	n.steadily(s, seen, "the whole rollback", func() { attend(t, l, oldRange, 0, "rollback", "beside", "--yes") })
	n.requireAllMoved(oldRange)
	requireNoTrace(t, l)
	n.requireNaiveLoses(s, "a hop without care", n.hopBare)
	n.requireNaiveLoses(s, "a Service deleted and recreated", n.recreate)
}

// wait does nothing for a while that clients are to live through.
func (n *neighbourhood) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-n.Context().Done():
	}
}

// steadily runs do while everything goes on beside it, and fails the test for all that is lost, refused, unavailable or changed back.
func (n *neighbourhood) steadily(s *shop, seen *hops, what string, do func()) {
	n.Helper()
	was := n.transition()
	ctx, cancel := context.WithCancel(n.Context())
	defer cancel()
	errands := n.errands()
	for _, e := range errands {
		go e.run(ctx)
	}
	lived := s.during(n.T, what, do)
	cancel()
	lived.requireNothingLost(n.T, traffic.Outside)
	for _, e := range errands {
		e.report(n.T, what)
	}
	if is := n.transition(); is != was {
		n.Errorf("%s: the APIService has been unavailable: its condition was last changed at %s, before at %s", what, is, was)
	}
	n.requireNoDrift(what, lived.from)
	seen.report(n.T, what)
}

// writeMove writes a Migration of the whole range, in steps without pauses.
func (n *neighbourhood) writeMove() string {
	n.Helper()
	return writeSpec(n.T, "beside", `
  serviceCIDR:
    to: [%s]
    drain: %s
    gateWait: 3m
    refresh: {parallel: 1}
    apiServers: [%s]
  batch: {size: 8, settle: 0s}
`, newRange, shortDrain, strings.Join(n.l.APIServers(), ", "))
}

// requireAllMoved fails the test unless every Service that can move is in a range.
func (n *neighbourhood) requireAllMoved(want string) {
	n.Helper()
	to := netip.MustParsePrefix(want)
	for name, s := range allServices(n.T, n.l) {
		pinned := s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.ClusterIP == corev1.ClusterIPNone
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); !pinned && s.Labels["replumb.dev/role"] == "" && (err != nil || !to.Contains(a)) {
			n.Errorf("service %s, of type %s, is at %q, not in %s", name, s.Spec.Type, s.Spec.ClusterIP, want)
		}
	}
}

// condition is what the API server says of metrics-server.
func (n *neighbourhood) condition(ctx context.Context) (string, error) {
	out, err := n.l.Client().
		Discovery().
		RESTClient().
		Get().
		AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io").
		DoRaw(ctx)
	if err != nil {
		return "", err
	}
	return conditionNamed(out, "Available")
}

// conditionNamed is an object's condition of a type: its status, since when, and why.
func conditionNamed(object []byte, name string) (string, error) {
	var o struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return "", err
	}
	for _, c := range o.Status.Conditions {
		if c.Type == name {
			return fmt.Sprintf("%s %s %s: %s", c.Status, c.LastTransitionTime.Format(time.RFC3339), c.Reason, c.Message), nil
		}
	}
	return "", fmt.Errorf("there is no condition %s", name)
}

// transition is when that was another one before.
func (n *neighbourhood) transition() string {
	n.Helper()
	said, err := n.condition(n.Context())
	must(n, err)
	return strings.Join(strings.Fields(said)[:2], " ")
}

// available fails unless metrics-server is available.
func (n *neighbourhood) available(ctx context.Context) error {
	said, err := n.condition(ctx)
	if err == nil && !strings.HasPrefix(said, "True ") {
		return fmt.Errorf("it is available: %s", said)
	}
	return nil
}

// ready fails if Flux says that it cannot apply what it fetched.
func (n *neighbourhood) ready(ctx context.Context) error {
	out, err := n.l.Client().Discovery().RESTClient().Get().
		AbsPath("/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/" + lab.FluxNamespace + "/kustomizations/shop").DoRaw(ctx)
	if err != nil {
		return nil //nolint:nilerr // an API server that restarts says nothing of Flux
	}
	said, err := conditionNamed(out, "Ready")
	if err == nil && strings.HasPrefix(said, "False ") {
		return fmt.Errorf("it is ready: %s", said)
	}
	return err
}

// tryApply gives objects to kubectl apply where a test cannot fail.
func (n *neighbourhood) tryApply(ctx context.Context, objects string) error {
	cmd := exec.CommandContext(ctx, n.l.Kubectl(), "apply", "-f", "-", "--kubeconfig", n.l.Kubeconfig())
	cmd.Stdin = strings.NewReader(objects)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// requireNoDrift fails the test if Flux has changed something since.
func (n *neighbourhood) requireNoDrift(what string, since time.Time) {
	n.Helper()
	events, err := n.l.Client().CoreV1().Events(lab.FluxNamespace).List(n.Context(), metav1.ListOptions{})
	must(n, err)
	for _, e := range events.Items {
		if e.InvolvedObject.Kind == "Kustomization" && e.LastTimestamp.After(since) && strings.Contains(e.Message, "configured") {
			n.Errorf("%s: Flux has changed something back: %s", what, e.Message)
		}
	}
}

// hopBare moves a Service as a bare hop does, with as much time between the two patches as a program takes to start.
func (n *neighbourhood) hopBare(name string) {
	n.Helper()
	n.kubectl("patch", "service", "-n", shopNamespace, name, "--type=merge", "-p", `{"spec":{"type":"ExternalName",`+
		`"externalName":"front.shop.svc.cluster.local","clusterIP":null,"clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null,"internalTrafficPolicy":null}}`)
	n.kubectl("patch", "service", "-n", shopNamespace, name, "--type=merge", "-p", `{"spec":{"type":"ClusterIP","externalName":null}}`)
}

// recreate deletes a Service and creates it as it was.
func (n *neighbourhood) recreate(name string) {
	n.Helper()
	services := n.l.Client().CoreV1().Services(shopNamespace)
	s, err := services.Get(n.Context(), name, metav1.GetOptions{})
	must(n, err)
	must(n, services.Delete(n.Context(), name, metav1.DeleteOptions{}))
	s.ResourceVersion, s.Spec.ClusterIP, s.Spec.ClusterIPs = "", "", nil
	if _, err := services.Create(n.Context(), s, metav1.CreateOptions{}); err != nil {
		n.Fatal(err)
	}
}

// requireNaiveLoses fails the test unless requests through Traefik are lost by what is done to a Service.
func (n *neighbourhood) requireNaiveLoses(s *shop, what string, do func(name string)) {
	n.Helper()
	s.steady(n.T)
	n.wait(3 * time.Second) // longer than Traefik holds a configuration back after another one
	lived := s.during(n.T, what, func() {
		do("catalog")
		n.wait(3 * time.Second)
	})
	lost := lived.stats(n.T, func(s traffic.Source) bool { return s.Via == traffic.ByTraefik })
	n.Logf("control: of %d requests through Traefik, %d were lost by %s", lost.Sent, lost.Failed, what)
	if lost.Failed == 0 {
		n.Errorf("nothing was lost by %s", what)
	}
}

// logNeighbours shows what they have to say when something was lost.
func (n *neighbourhood) logNeighbours() {
	if !n.Failed() {
		return
	}
	for _, of := range [][]string{
		{"logs", "-n", lab.TraefikNamespace, "deployment/traefik", "--timestamps", "--tail=80"},
		{"logs", "-n", lab.FluxNamespace, "deployment/kustomize-controller", "--tail=20"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
	} {
		out, err := exec.Command(n.l.Kubectl(), append(of, "--kubeconfig", n.l.Kubeconfig())...).CombinedOutput()
		n.Logf("kubectl %s: %v\n%s", strings.Join(of, " "), err, out)
	}
}
