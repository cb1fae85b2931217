package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/ownaddress"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestCiliumThenServices is the way of a cluster beside whose kube-proxy Services cannot move past Cilium: first Cilium comes into the place of
// flannel and kube-proxy, and is finished, and then the Services move by it, there, back and there again. Clients on the nodes' own network, pods
// that move like all others, and one of a node port from another machine lose nothing. The control deletes and recreates a Service.
func TestCiliumThenServices(t *testing.T) {
	l := bringUpForBoth(t, forCiliumAlone("e2e-cilium-then"))
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 4, LookUp: 1})
	addMembers(t, l, s, traffic.Calls.SeenAsAny)
	s.gate = openGate(t, l, s.watch.Load().Share)
	requireCarried(t, s)
	p := proxyPrograms{l}
	nothingLost := func(what string, do func()) {
		t.Helper()
		lived := s.during(t, what, do)
		lived.requireNothingLost(t, traffic.Permitted)
	}

	network := writeProxySwitch(t, l)
	nothingLost("flannel and kube-proxy being replaced", func() { requireDone(t, attendProxies(t, p, nil, "apply", "-f", network, "--yes")) })
	nothingLost("finish of the network", func() { shown(t, l, "finish", toCiliumAlone, "--yes") })
	p.require(t, false)
	requireNoTrace(t, l)

	on, file := onControlPlane(t, l), keepersMigration(t, "own", v1alpha1.StrategyOfEtcd)
	nothingLost("the move of Services", func() { succeed(t, on(t, "apply", "-f", file)) })
	requireAllIn(t, l, newRange)
	requireKept(t, l, v1alpha1.OverlapLoadBalancer)
	nothingLost("the way back of Services", func() { succeed(t, on(t, "rollback", "own", "--yes")) })
	requireAllIn(t, l, oldRange)
	requireNoTrace(t, l)
	nothingLost("the move of Services again", func() { succeed(t, on(t, "apply", "-f", file)) })
	requireAllIn(t, l, newRange)
	requireNaiveLoses(t, l)
}

// TestFluxBehindCilium moves Services behind Cilium of which Flux applies one, whose manifest says type ClusterIP. Flux stays Ready, by a watch of
// all that it says of itself; it writes the Service no more often than before, applies what else is committed, and takes no address away. After
// finish the manifest holds. The control takes away the policy that keeps the type, and requests to the old address are lost.
func TestFluxBehindCilium(t *testing.T) {
	topology := withCilium("e2e-cilium-flux", lab.NoProxy, lab.NoProxy)
	topology.Edge, topology.Registry, topology.With = true, "registry.lab.example", []lab.Addon{lab.Flux}
	l := bringUp(t, topology)
	forgetNamesSoon(t, l)
	f := fluxed{&inCluster{T: t, l: l, s: callEveryKind(t, l)}}
	f.begin()
	on, file := onControlPlane(t, l), keepersMigration(t, "own", v1alpha1.StrategyOfEtcd)
	apply := func() { t.Helper(); succeed(t, on(t, "apply", "-f", file)) }

	ready := f.watchReady()
	f.nothingLost("the move", apply)
	requireAllIn(t, l, newRange)
	f.nothingLost("Flux at work during the overlap", func() {
		before := f.service().ResourceVersion
		f.reconcile("unchanged")
		if now := f.service().ResourceVersion; now != before {
			t.Errorf("Flux, or who corrects it, wrote the Service: %s, then %s", before, now)
		}
		f.commit(1)
		f.reconcile("changed")
	})
	requireKept(t, l, v1alpha1.OverlapLoadBalancer)
	ready.end()
	f.requireUnkeptLoses()
	apply()

	requireKept(t, l, v1alpha1.OverlapLoadBalancer)
	f.s = callByNameAlone(t, l, f.s)
	ready = f.watchReady()
	f.nothingLost("finish", func() {
		succeed(t, on(t, "finish", "own", "--yes"))
		f.commit(3)
		f.reconcile("finished")
	})
	ready.end()
	if svc := f.service(); svc.Spec.Type != corev1.ServiceTypeClusterIP || len(svc.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("after finish the Service is of type %s and answers at %v", svc.Spec.Type, svc.Status.LoadBalancer.Ingress)
	}
	requireNoTrace(t, l)
}

const (
	// fluxedService is one of everyKind, which is committed as well.
	fluxedService  = "sticky"
	fluxedManifest = `apiVersion: v1
kind: Service
metadata: {namespace: shop, name: sticky, annotations: {round: "%d"}}
spec:
  type: ClusterIP
  sessionAffinity: ClientIP
  selector: {app.kubernetes.io/name: catalog}
  ports: [{name: http, port: 80, targetPort: http}]
`
)

// fluxed is a cluster to which Flux applies a Service.
type fluxed struct{ *inCluster }

// begin has Flux take the Service over, and wait for its health from then on.
func (f fluxed) begin() {
	f.Helper()
	f.push(0)
	f.trustRegistry()
	objects := fmt.Sprintf(neighbourFlux, lab.FluxNamespace, f.l.Registry().Host, neighbourArtifact)
	f.apply(strings.Replace(objects, "prune: true", "prune: true\n  wait: true\n  timeout: 1m", 1))
	f.applied(0)
	f.reconcile("begun")
}

func (f fluxed) nothingLost(what string, do func()) {
	f.Helper()
	lived := f.s.during(f.T, what, do)
	lived.requireNothingLost(f.T, traffic.All)
}

func (f fluxed) push(round int) {
	f.Helper()
	files := fstest.MapFS{"shop.yaml": {Data: fmt.Appendf(nil, fluxedManifest, round), Mode: 0o644}}
	must(f, f.l.Addons().PushFiles(f.Context(), files, neighbourArtifact+":main"))
}

// commit returns when Flux has applied another manifest.
func (f fluxed) commit(round int) {
	f.Helper()
	f.push(round)
	f.applied(round)
}

func (f fluxed) applied(round int) {
	f.Helper()
	f.kubectl("wait", fmt.Sprintf("--for=jsonpath={.metadata.annotations.round}=%d", round), "-n", shopNamespace, "service/"+fluxedService, "--timeout=2m")
}

// reconcile returns when Flux has compared the Service with its manifest once more, and is Ready.
func (f fluxed) reconcile(word string) {
	f.Helper()
	const of = "kustomization/shop"
	f.kubectl("annotate", "--overwrite", "-n", lab.FluxNamespace, of, "reconcile.fluxcd.io/requestedAt="+word)
	f.kubectl("wait", "--for=jsonpath={.status.lastHandledReconcileAt}="+word, "-n", lab.FluxNamespace, of, "--timeout=2m")
	f.kubectl("wait", "--for=condition=Ready", "-n", lab.FluxNamespace, of, "--timeout=2m")
}

func (f fluxed) service() *corev1.Service {
	f.Helper()
	svc, err := f.l.Client().CoreV1().Services(shopNamespace).Get(f.Context(), fluxedService, metav1.GetOptions{})
	must(f, err)
	return svc
}

// readiness is what Flux says of itself for a while.
type readiness struct {
	f     fluxed
	stop  context.CancelFunc
	ended chan struct{}
	said  []string
}

// watchReady returns when the first word is there.
func (f fluxed) watchReady() *readiness {
	f.Helper()
	ctx, stop := context.WithCancel(f.Context())
	r := &readiness{f: f, stop: stop, ended: make(chan struct{})}
	const conditions = `jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.reason} {.message}{"\n"}{end}`
	cmd := exec.CommandContext(ctx, f.l.Kubectl(), "get", "kustomization", "shop", "-n", lab.FluxNamespace, "--watch", "-o", conditions,
		"--kubeconfig", f.l.Kubeconfig())
	out, err := cmd.StdoutPipe()
	must(f, err)
	must(f, cmd.Start())
	first := make(chan struct{})
	go func() {
		defer close(r.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if r.said = append(r.said, lines.Text()); len(r.said) == 1 {
				close(first)
			}
		}
		_ = cmd.Wait() // it was ended
	}()
	select {
	case <-first:
	case <-r.ended:
		f.Fatal("Flux says nothing of what it applies")
	}
	return r
}

// end fails the test if Flux was not Ready at any time.
func (r *readiness) end() {
	r.f.Helper()
	r.stop()
	<-r.ended
	for _, word := range r.said {
		if strings.HasPrefix(word, "False") {
			r.f.Errorf("Flux was not Ready: %s", word)
		}
	}
	r.f.Logf("Flux said %d times how it is, the last time: %s", len(r.said), r.said[len(r.said)-1])
}

// requireUnkeptLoses is the control: nothing keeps the type any more, and Flux applies its manifest.
func (f fluxed) requireUnkeptLoses() {
	f.Helper()
	old, err := netip.ParseAddr(f.service().Annotations[v1alpha1.AnnotationOldIP])
	must(f, err)
	admission := f.l.Client().AdmissionregistrationV1()
	changes, err := f.l.Client().CoreV1().Services(shopNamespace).Watch(f.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: fluxedService}))
	must(f, err)
	defer changes.Stop()
	lost := f.s.during(f.T, "Flux at work without the policy", func() {
		must(f, admission.MutatingAdmissionPolicyBindings().Delete(f.Context(), freeze.KeepTypeName, metav1.DeleteOptions{}))
		must(f, admission.ValidatingAdmissionPolicyBindings().Delete(f.Context(), freeze.Name, metav1.DeleteOptions{}))
		f.commit(2)
		for change := range changes.ResultChan() { // without end the test has one
			if svc, is := change.Object.(*corev1.Service); is && !answersAt(svc, old) {
				break
			}
		}
		awaitReports(f.T, f.s)
	})
	stats := lost.stats(f.T, traffic.All)
	if stats.Failed == 0 {
		f.Errorf("none of %d requests was lost without the policy: the test proves nothing", stats.Sent)
	}
	f.Logf("control: without the policy that keeps the type, %d of %d requests were lost", stats.Failed, stats.Sent)
}

func answersAt(svc *corev1.Service, a netip.Addr) bool {
	_, answers := ownaddress.FormOf(svc, a)
	return answers
}
