package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	restartsNamespace = "clock"
	// lookUps are those that the client on each of two nodes makes in a second, each of two questions. None is sent twice.
	lookUps = 500
	// datagrams are those to a workload of users.
	datagrams = 100
	// rollouts is how many rollouts of CoreDNS may pass before one of them loses a look-up.
	rollouts = 8
	// leavingRole selects what there is of pods that leave their Services.
	leavingRole = v1alpha1.LabelRole + "=" + v1alpha1.RoleLeaving
)

// TestRestarts has CoreDNS and a workload that takes datagrams restarted by apply, and once more by rollback, while a thousand names are
// looked up a second and no datagram is sent twice: none is lost. The control is `kubectl rollout restart`, which loses some.
func TestRestarts(t *testing.T) {
	l := bringUp(t, named("e2e-restarts"))
	r := newRestarts(t, l)

	replumb(t, l, "apply", "-f", r.file, "--until", "kubelets", "--yes")
	r.requireRestarts("apply", "-f", r.file, "--yes")
	r.requireRestarts("rollback", "restarts", "--yes")
	r.requireNoneLeaving()
	requireNoTrace(t, l)

	lost, sent := 0, 0
	for n := 1; n <= rollouts && lost == 0; n++ {
		naive := r.s.during(t, "kubectl rollout restart", r.rollOut).stats(t, traffic.All)
		lost, sent = lost+naive.Failed, sent+naive.Sent
		t.Logf("control: %d rollouts lost %d of %d", n, lost, sent)
	}
	if lost == 0 {
		t.Errorf("%d rollouts lost none of %d requests: the probes see no loss", rollouts, sent)
	}
}

// requireRestarts runs a command that restarts everything, and fails the test if a look-up or a datagram was lost meanwhile.
func (r *restarts) requireRestarts(args ...string) {
	r.Helper()
	before := r.pods()
	var out []byte
	var err error
	r.s.during(r.T, "restarts by "+args[0], func() {
		out, err = command(r.T, "replumb", append(args, "--kubeconfig", r.l.Kubeconfig())...).CombinedOutput()
	}).requireNothingLost(r.T, traffic.All)
	if err != nil {
		r.Fatalf("replumb %s: %v\n%s", args[0], err, out)
	}
	r.requireOthers(before)
	r.requireNotRolledOut()
}

// restarts is a cluster in which CoreDNS, and a workload that takes datagrams, carry the address of a Service that moves.
type restarts struct {
	*testing.T
	l    *lab.Lab
	s    *shop
	file string
}

func newRestarts(t *testing.T, l *lab.Lab) *restarts {
	t.Helper()
	r := &restarts{T: t, l: l, file: writeSpec(t, "restarts", `
  serviceCIDR:
    to: [%s]
    drain: 1s
    clusterServices: Stay
  batch: {size: 4, settle: 1s}
  image: %s
  proof: {agents: Enabled}
`, newRange, workload.ReplumbImage)}
	// CoreDNS is in a namespace with a Service that moves, and knows its address from when it started. It is given the share of the processors
	// that it takes, and room.
	roomForQuestions(t)
	neighbour := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "neighbour"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	echo := workload.Echo{Namespace: restartsNamespace, Name: restartsNamespace, PartOf: restartsNamespace, Replicas: 2}
	callees, err := start(
		t.Context(),
		l,
		restartsNamespace,
		append([]runtime.Object{workload.Namespace(restartsNamespace), neighbour}, echo.Objects()...),
	)
	must(t, err)
	favourNameServers(t, l)
	r.rollOut()
	calls := traffic.Calls{Namespace: restartsNamespace, Once: true, Targets: map[traffic.Via][]probe.Target{
		traffic.ByOldServer: {{
			Name: traffic.DNSService, Kind: probe.DNS, Rate: lookUps, Address: "kubernetes.default.svc.cluster.local.",
			Resolver: net.JoinHostPort(oldDNS, "53"),
		}},
		traffic.ByOldAddress: {{
			Name: restartsNamespace, Kind: probe.UDP, Rate: datagrams,
			Address: net.JoinHostPort(callees[0].Address, strconv.Itoa(workload.UDPPort)),
		}},
	}}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls)
	must(t, err)
	t.Cleanup(watch.Stop)
	r.s = &shop{watch: watch, prompt: traffic.OfPods()}
	r.s.steady(t)
	return r
}

// roomForQuestions has sockets take datagrams for seconds until the test ends. By default one has room for 280, and a name server that a busy
// machine lets stand still for a quarter of a second loses some of a thousand a second, whatever restarts it.
func roomForQuestions(t *testing.T) {
	t.Helper()
	const setting, room = "/proc/sys/net/core/rmem_default", "4194304"
	was, err := os.ReadFile(setting)
	must(t, err)
	must(t, os.WriteFile(setting, []byte(room), 0))
	t.Cleanup(func() {
		if err := os.WriteFile(setting, was, 0); err != nil {
			t.Error(err)
		}
	})
}

// rollOut restarts CoreDNS as people do, and waits until it is through.
func (r *restarts) rollOut() {
	r.Helper()
	kubectl(r.T, r.l, "rollout restart deployment/coredns -n kube-system")
	kubectl(r.T, r.l, "rollout status deployment/coredns -n kube-system --timeout=2m")
	r.awaitEnds()
}

// favourNameServers has CoreDNS restarted with a share of the processors that comes before that of other pods.
func favourNameServers(t *testing.T, l *lab.Lab) {
	t.Helper()
	kubectl(t, l, "set resources deployment/coredns --requests=cpu=500m,memory=70Mi -n kube-system")
}

// kubectl runs a command line, without what it begins with.
func kubectl(t *testing.T, l *lab.Lab, line string) {
	t.Helper()
	args := append(strings.Fields(line), "--kubeconfig", l.Kubeconfig())
	if out, err := exec.CommandContext(t.Context(), l.Kubectl(), args...).CombinedOutput(); err != nil {
		t.Fatalf("kubectl %s: %v\n%s", line, err, out)
	}
}

// awaitEnds waits until no pod of CoreDNS ends any more.
func (r *restarts) awaitEnds() {
	r.Helper()
	eventually(r.T, settled, func() error {
		for _, p := range r.list(metav1.NamespaceSystem, "k8s-app=kube-dns") {
			if p.DeletionTimestamp != nil {
				return fmt.Errorf("%s ends", p.Name)
			}
		}
		return nil
	})
}

func (r *restarts) list(namespace, selector string) []corev1.Pod {
	r.Helper()
	all, err := r.l.Client().CoreV1().Pods(namespace).List(r.Context(), metav1.ListOptions{LabelSelector: selector})
	must(r, err)
	return all.Items
}

// pods are those that are to be restarted, by name.
func (r *restarts) pods() []string {
	r.Helper()
	var names []string
	for _, p := range slices.Concat(r.list(metav1.NamespaceSystem, "k8s-app=kube-dns"), r.list(restartsNamespace, "app.kubernetes.io/name="+restartsNamespace)) {
		names = append(names, p.Name)
	}
	return names
}

// requireOthers fails the test if a pod of before is still there, or if there are not as many others.
func (r *restarts) requireOthers(before []string) {
	r.Helper()
	now := r.pods()
	for _, name := range now {
		if slices.Contains(before, name) {
			r.Errorf("pod %s was not restarted", name)
		}
	}
	if len(now) != len(before) || len(now) < 4 {
		r.Errorf("there are pods %v, and were %v", now, before)
	}
}

// requireNoneLeaving fails the test if anything is left of pods that were taken out of their Services.
func (r *restarts) requireNoneLeaving() {
	r.Helper()
	for _, p := range r.list(metav1.NamespaceAll, leavingRole) {
		r.Errorf("pod %s/%s is still leaving", p.Namespace, p.Name)
	}
	all, err := r.l.Client().DiscoveryV1().EndpointSlices("").List(r.Context(), metav1.ListOptions{LabelSelector: leavingRole})
	must(r, err)
	for _, s := range all.Items {
		r.Errorf("endpointslice %s/%s is still there", s.Namespace, s.Name)
	}
}

// requireNotRolledOut fails the test if a Deployment was restarted by rollout instead, as where its pods cannot leave their Services first.
func (r *restarts) requireNotRolledOut() {
	r.Helper()
	for namespace, name := range map[string]string{metav1.NamespaceSystem: "coredns", restartsNamespace: restartsNamespace} {
		d, err := r.l.Client().AppsV1().Deployments(namespace).Get(r.Context(), name, metav1.GetOptions{})
		must(r, err)
		if at := d.Spec.Template.Annotations[v1alpha1.AnnotationRestartedAt]; at != "" {
			r.Errorf("deployment %s/%s was restarted by rollout at %s", namespace, name, at)
		}
	}
}
