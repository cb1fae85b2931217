//go:build apiserver && long

package cni

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
)

const ciliumObjects = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium, namespace: kube-system, labels: {k8s-app: cilium}}
spec:
  selector: {matchLabels: {app: cilium}}
  template:
    metadata: {labels: {app: cilium, k8s-app: cilium}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers: [{name: cilium-agent, image: cilium, env: [{name: KUBERNETES_SERVICE_HOST, value: 192.0.2.9}]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cilium-config, namespace: kube-system}
data:
  write-cni-conf-when-ready: /host/etc/cni/net.d/05-cilium.conflist
  cluster-pool-ipv4-cidr: 10.245.0.0/16
  tunnel-port: "8473"
  kube-proxy-replacement: "true"
  kube-proxy-replacement-healthz-bind-address: 0.0.0.0:10256
  bpf-lb-sock-hostns-only: "true"
`

// nodeConfigs is the definition that Cilium's operator makes.
const nodeConfigs = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumnodeconfigs.cilium.io}
spec:
  group: cilium.io
  scope: Namespaced
  names: {kind: CiliumNodeConfig, plural: ciliumnodeconfigs, singular: ciliumnodeconfig, listKind: CiliumNodeConfigList}
  versions:
  - name: v2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const proxyObjects = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: kube-proxy}}
  template:
    metadata: {labels: {app: kube-proxy}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [a, b]}]}]
      containers: [{name: kube-proxy, image: proxy, command: [kube-proxy, --cluster-cidr=10.244.0.0/15]}]
`

// proxied plays who leads to Services on nodes: kube-proxy where it has a pod or, as a program,
// where it is not stopped; and Cilium where its agent has found, when it started, that it is to.
type proxied struct {
	*fixture
	programs map[string]bool
	// programmed says that it is a program.
	programmed bool
	// replaces is what agents found by the UID of their pods, and well those who could say that
	// they are well.
	replaces, well map[types.UID]bool
}

// replacing is a cluster whose pods have Cilium's network already; beside it kube-proxy is a
// DaemonSet, or a program of each node.
func withCiliumForProxy(t *testing.T, asSet bool) *proxied {
	t.Helper()
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.CNI.To, m.Spec.CNI.Mode, m.Spec.CNI.KubeProxy = v1alpha1.Cilium, v1alpha1.CNIInPlace, v1alpha1.KubeProxyReplace
		m.Spec.Proof.Agents = v1alpha1.AgentsDisabled // the fleet plays none
	})
	p := &proxied{
		fixture:    f,
		programmed: !asSet,
		programs:   map[string]bool{"a": !asSet, "b": !asSet},
		replaces:   map[types.UID]bool{},
		well:       map[types.UID]bool{},
	}
	f.Must(os.WriteFile(filepath.Join(f.dir, "calico.yaml"), []byte(ciliumObjects), 0o600))
	f.Must(server.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}))
	objects := ciliumObjects + "---" + nodeConfigs
	if asSet {
		objects += "---" + proxyObjects
	}
	f.apply(objects)
	t.Cleanup(func() {
		all, err := manifests.Decode("test", []byte(objects))
		f.Must(err)
		everything, err := server.Any()
		f.Must(err)
		for _, o := range all {
			f.Must(client.IgnoreNotFound(everything.Delete(context.Background(), o)))
		}
	})
	f.Until("agents of Cilium", func() bool { return len(f.pods("kube-system", "cilium")) == 2 })
	if asSet {
		f.Until("kube-proxy", func() bool { return len(f.pods("kube-system", "kube-proxy")) == 2 })
	}
	for _, pod := range f.pods("kube-system", "cilium") {
		p.replaces[pod.UID] = false
	}
	f.Mu.Lock()
	f.says = p.says
	f.Mu.Unlock()
	return p
}

// on is the pod of a DaemonSet on a node, if it has one.
func (p *proxied) on(app, node string) *corev1.Pod {
	all := &corev1.PodList{}
	if err := server.List(context.Background(), all, client.InNamespace("kube-system"), client.MatchingLabels{"app": app}); err != nil {
		p.Error(err)
	}
	i := slices.IndexFunc(all.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node && pod.DeletionTimestamp.IsZero() })
	if i < 0 {
		return nil
	}
	return &all.Items[i]
}

func (p *proxied) proxy(node string) bool { return p.programs[node] || p.on("kube-proxy", node) != nil }

// agent looks at the agent of a node as it was when it started.
func (p *proxied) agent(node string) (replaces, well bool) {
	pod := p.on("cilium", node)
	if pod == nil {
		return false, false
	}
	if _, known := p.replaces[pod.UID]; !known {
		n := &corev1.Node{}
		if err := server.Get(context.Background(), client.ObjectKey{Name: node}, n); err != nil {
			p.Error(err)
		}
		mark := n.Labels[v1alpha1.LabelKubeProxy]
		p.replaces[pod.UID] = mark != ""
		p.well[pod.UID] = (mark == v1alpha1.ProxyLeaving || mark == v1alpha1.ProxyReplaced) && !p.proxy(node)
	}
	return p.replaces[pod.UID], p.well[pod.UID]
}

// says is what replumb would find on a node.
func (p *proxied) says(pod *corev1.Pod) *nodecleanup.TracesReport {
	r := &nodecleanup.TracesReport{}
	node, args := pod.Spec.NodeName, strings.Join(pod.Spec.Containers[0].Args, " ")
	replaces, well := p.agent(node)
	proxy := p.proxy(node)
	switch pod.Labels[taskpod.Label] {
	case nodepod.VerbCilium:
		r.Found = append(r.Found, nodecleanup.Replaces(replaces))
		if well && strings.Contains(args, "--healthz=") {
			r.Found = append(r.Found, nodecleanup.HealthzAnswers)
		}
	case nodepod.VerbServices:
		if strings.Contains(args, "--reach=") && !replaces && !proxy {
			r.Problems = append(r.Problems, "no one leads to Services")
		}
		if strings.Contains(args, "--unprogrammed=") && proxy {
			r.Problems = append(r.Problems, "kube-proxy still runs")
		}
		if strings.Contains(args, "--programmed=") && !proxy {
			r.Problems = append(r.Problems, "kube-proxy has written no rule")
		}
	default:
		return nil
	}
	return r
}

// led fails the test if kube-proxy has to leave a node where no one else leads to Services. One
// whose pod is replaced has its rules meanwhile.
func (p *proxied) led(after string) {
	p.Helper()
	for i, mark := range p.marks() {
		node := []string{"a", "b"}[i]
		if replaces, _ := p.agent(
			node,
		); !replaces &&
			(mark == v1alpha1.ProxyLeaving || mark == v1alpha1.ProxyReplaced || p.programmed && !p.proxy(node)) {
			p.Errorf("after %s no one leads to Services on node %s", after, node)
		}
	}
}

// plans looks at the cluster as a run does that has begun.
func (p *proxied) plans() switchover.Plans {
	p.Helper()
	plans, err := p.job.Examine(p.Context())
	p.Must(err)
	now := metav1.Now()
	plans.Shared().Inventory.Status.Begun = &now
	return plans
}

// replace are the steps that have Cilium take the place of kube-proxy, and restore those of the way
// back.
func (p *proxied) replace() []engine.Group { return aboutProxy(p.plans().Apply()) }
func (p *proxied) restore() []engine.Group { return aboutProxy(p.plans().Rollback()) }

// step is the one with an ID.
func step(t *testing.T, groups []engine.Group, id string) engine.Step {
	t.Helper()
	for _, g := range groups {
		for _, s := range g.Steps {
			if s.ID() == id {
				return s
			}
		}
	}
	t.Fatalf("there is no step %s", id)
	return nil
}

func aboutProxy(plan *engine.Plan) []engine.Group {
	i := slices.IndexFunc(plan.Phases, func(phase engine.Phase) bool { return phase.Name == "kube-proxy" })
	return plan.Phases[i].Groups
}

// drive does the steps of groups in order, but for those that a name begins with, if one is given,
// and what follows them.
func (p *proxied) drive(groups []engine.Group, until string) []string {
	p.Helper()
	var done []string
	for _, g := range groups {
		for _, s := range g.Steps {
			if until != "" && strings.HasPrefix(s.ID(), until) {
				return done
			}
			p.Must(engine.Drive(p.Context(), s))
			done = append(done, s.ID())
			p.Mu.Lock()
			p.led(s.ID())
			p.Mu.Unlock()
		}
	}
	return done
}

func (p *proxied) marks() []string {
	p.Helper()
	var out []string
	for _, name := range []string{"a", "b"} {
		n := &corev1.Node{}
		p.Must(server.Get(p.Context(), client.ObjectKey{Name: name}, n))
		out = append(out, n.Labels[v1alpha1.LabelKubeProxy])
	}
	return out
}

func (p *proxied) configs() int {
	p.Helper()
	n := 0
	for _, name := range []string{"replumb-kube-proxy", "replumb-kube-proxy-healthz"} {
		if p.have("CiliumNodeConfig", "kube-system", name, "cilium.io/v2") != nil {
			n++
		}
	}
	return n
}

// TestProxyReplacedAndBack has kube-proxy leave node after node, each only when Cilium leads to
// Services there, cut off on the way; and back, where Cilium lets go only when kube-proxy is there.
// Its DaemonSet is in the end what it was.
func TestProxyReplacedAndBack(t *testing.T) {
	p := withCiliumForProxy(t, true)
	before, err := daemonset.Find(t.Context(), p.job.Deps.Cluster, client.ObjectKey{Namespace: "kube-system", Name: "kube-proxy"})
	p.Must(err)

	p.drive(p.replace(), "proxy-gone/b") // and a run ends there
	if got := p.marks(); !slices.Equal(got, []string{"replaced", "leaving"}) {
		t.Errorf("after the first run nodes are marked %q", got)
	}
	done := p.drive(p.replace(), "")
	if slices.Contains(done, "services/a") || !slices.Contains(done, "services/b") || !slices.Contains(done, "health/b") {
		t.Errorf("the second run did %v", done)
	}
	if got := p.marks(); !slices.Equal(got, []string{"replaced", "replaced"}) || len(p.pods("kube-system", "kube-proxy")) > 0 ||
		p.configs() != 2 {
		t.Errorf(
			"nodes are marked %q, with %d pods of kube-proxy and %d configurations",
			got,
			len(p.pods("kube-system", "kube-proxy")),
			p.configs(),
		)
	}
	for _, node := range []string{"a", "b"} {
		if replaces, well := p.agent(node); !replaces || !well {
			t.Errorf("the agent of node %s replaces kube-proxy: %v, and is well: %v", node, replaces, well)
		}
	}
	if groups := p.replace(); len(groups) > 0 {
		t.Errorf("there is more to do: %v", groups)
	}

	p.drive(p.restore(), "")
	after, err := daemonset.Find(t.Context(), p.job.Deps.Cluster, client.ObjectKeyFromObject(before))
	p.Must(err)
	if !equality.Semantic.DeepEqual(after.Spec, before.Spec) || after.Annotations[v1alpha1.AnnotationAffinity] != "" {
		t.Errorf("kube-proxy's DaemonSet is\n%+v, was\n%+v", after.Spec, before.Spec)
	}
	if got := p.marks(); !slices.Equal(got, []string{"", ""}) || len(p.pods("kube-system", "kube-proxy")) != 2 || p.configs() != 0 {
		t.Errorf(
			"back, nodes are marked %q, with %d pods of kube-proxy and %d configurations",
			got,
			len(p.pods("kube-system", "kube-proxy")),
			p.configs(),
		)
	}
	for _, node := range []string{"a", "b"} {
		if replaces, _ := p.agent(node); replaces {
			t.Errorf("the agent of node %s still replaces kube-proxy", node)
		}
	}
	if p.have("Service", v1alpha1.SystemNamespace, "kube-proxy-trial", core) != nil {
		t.Error("the Service that was asked for is left")
	}
}

// TestProxyIsAProgram waits on each node until the operator has stopped it, and on the way back
// until they have started it. The control is that it does not go on before.
func TestProxyIsAProgram(t *testing.T) {
	p := withCiliumForProxy(t, false)
	groups := p.replace()
	p.drive(groups, "services/a")
	gate := step(t, groups, "services/a")
	if engine.RoleOf(gate) != engine.RoleGate || !strings.Contains(gate.(engine.Guide).Guide(), "Stop kube-proxy on node a") {
		t.Errorf("the operator is told %q", gate.(engine.Guide).Guide())
	}
	short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := engine.Drive(short, gate); err == nil || !strings.Contains(err.Error(), "kube-proxy still runs") {
		t.Errorf("with kube-proxy running: %v", err)
	}
	go func() { // as operators do when they are asked
		_ = wait.PollUntilContextCancel(t.Context(), time.Second, true, func(context.Context) (bool, error) {
			p.Mu.Lock()
			defer p.Mu.Unlock()
			for _, node := range []string{"a", "b"} {
				if replaces, _ := p.agent(node); replaces {
					p.programs[node] = false
				}
			}
			return !p.programs["a"] && !p.programs["b"], nil
		})
	}()
	p.drive(p.replace(), "")
	if got := p.marks(); !slices.Equal(got, []string{"replaced", "replaced"}) {
		t.Errorf("nodes are marked %q", got)
	}
	p.Mu.Lock()
	p.programs["a"], p.programs["b"] = true, true
	p.Mu.Unlock()
	p.drive(p.restore(), "")
	if got := p.marks(); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("back, nodes are marked %q", got)
	}
}
