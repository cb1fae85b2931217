//go:build apiserver

package kubeproxy

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
	"github.com/replumb/replumb/internal/network/proxyrules"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/crash"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// lazy is shared by the tests of this package; each begins with an empty cluster. Its controllers
// are real, its nodes are played.
var (
	lazy   = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{apitest.Controllers()}}
	server *apitest.Server
)

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

const patience = 60 * time.Second

// rules are what a node has: those of modes, and a copy.
type rules struct {
	modes  map[v1alpha1.KubeProxyMode]bool
	copied bool
	// open is at how many looks connections still go by what mode ipvs has left.
	open int
}

// fixture is a cluster of two nodes on which kube-proxies are played: one that starts removes the
// rules of the other mode, and those that run have written their own by the time that rules are
// looked at.
type fixture struct {
	*migrationtest.Stage
	job    *Job
	runner *engine.Runner
	nodes  map[string]*rules
	// started are the modes that pods of kube-proxy have found when they started.
	started map[types.UID]v1alpha1.KubeProxyMode
	// programs are the modes of kube-proxies that are programs of nodes.
	programs map[string]v1alpha1.KubeProxyMode
	// ordered, if set, is the mode that the owner of such a program has it in by now.
	ordered func(node string) v1alpha1.KubeProxyMode
	// heard, if set, hears events.
	heard func(engine.Event)
	// cut ends a run when a step begins.
	cut  string
	stop context.CancelFunc
}

const ownObjects = `
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers:
      - name: kube-proxy
        image: kube-proxy:v1.36.3
        command: [kube-proxy, --config=/var/lib/kube-proxy/config.conf]
        volumeMounts: [{name: kube-proxy, mountPath: /var/lib/kube-proxy}]
      volumes: [{name: kube-proxy, configMap: {name: kube-proxy}}]
`

const ownConfig = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"\"\n"

// setup has kube-proxy in the pods of a DaemonSet.
func setup(t *testing.T) *fixture {
	t.Helper()
	return setupMode(t, `""`, v1alpha1.KubeProxyNFTables)
}

// setupMode has it in a mode, as its configuration names it.
func setupMode(t *testing.T, configured string, to v1alpha1.KubeProxyMode) *fixture {
	t.Helper()
	f := begin(t, &v1alpha1.KubeProxySpec{Mode: to}, modeOf(strings.Trim(configured, `"`)))
	own := &appsv1.DaemonSet{}
	f.Must(yaml.Unmarshal([]byte(ownObjects), own))
	text := strings.Replace(ownConfig, `""`, configured, 1)
	config := &corev1.ConfigMap{ObjectMeta: own.ObjectMeta, Data: map[string]string{"config.conf": text}}
	f.Must(server.Create(f.Context(), config))
	f.Must(server.Create(f.Context(), own))
	f.Until("kube-proxy", func() bool { return len(f.pods("k8s-app")) == 2 })
	return f
}

func begin(t *testing.T, spec *v1alpha1.KubeProxySpec, from v1alpha1.KubeProxyMode) *fixture {
	t.Helper()
	server = lazy.Get(t)
	clean(t)
	f := &fixture{Stage: migrationtest.New(t, server), nodes: map[string]*rules{}, started: map[types.UID]v1alpha1.KubeProxyMode{}}
	fleet := &fakekubelet.Fleet{Client: server, Phase: phaseOf, Message: f.message, Addresses: &fakekubelet.Counting{}}
	for name, address := range map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"} {
		f.Must(fleet.Node(f.Context(), name, netip.MustParseAddr(address)))
		f.nodes[name] = &rules{modes: map[v1alpha1.KubeProxyMode]bool{from: true}}
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); fleet.Run(ctx) }()
	t.Cleanup(func() { clean(t); stop(); <-ended }) // pods need their kubelets to end

	m := &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{
			KubeProxy: spec,
			Proof:     v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled}, // the fleet plays none
		},
	}
	operator, _ := migrationtest.Operator(t, server, Roles())
	job, err := NewJob(migration.Deps{Cluster: crash.Watch(t, operator), Image: pull.Image{Name: "replumb"}}, m)
	f.Must(err)
	f.job = job
	f.job.Holder = migrationtest.Killed()
	f.runner = &engine.Runner{Sink: f.take, Deadline: patience}
	return f
}

func clean(t *testing.T) {
	t.Helper()
	migrationtest.Clear(t, server, &appsv1.DaemonSetList{}, &corev1.PodList{}, &corev1.NodeList{})
	for _, name := range []string{"kube-proxy", "kube-proxy-nftables", "kube-proxy-iptables", "kube-proxy-ipvs"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}}
		must(t, client.IgnoreNotFound(server.Delete(context.Background(), cm)))
	}
	server.Clean(t)
}

func phaseOf(pod *corev1.Pod) corev1.PodPhase {
	if pod.Labels[taskpod.Label] != "" {
		return corev1.PodSucceeded
	}
	return corev1.PodRunning
}

// pods are those of kube-proxy that have a label: k8s-app is the cluster's own DaemonSet's, and
// nameLabel replumb's.
func (f *fixture) pods(label string) []corev1.Pod {
	all := &corev1.PodList{}
	if err := server.List(context.Background(), all, client.InNamespace(metav1.NamespaceSystem), client.HasLabels{label}); err != nil {
		f.Error(err)
	}
	return all.Items
}

// observe has pods of kube-proxy that are new start. A configuration must not change under one.
func (f *fixture) observe() {
	for _, label := range []string{"k8s-app", nameLabel} {
		for _, pod := range f.pods(label) {
			name := "kube-proxy"
			if label == nameLabel {
				name = pod.Labels[nameLabel]
			}
			config := &corev1.ConfigMap{}
			if err := server.Get(context.Background(), client.ObjectKey{Namespace: pod.Namespace, Name: name}, config); err != nil {
				continue // it is being deleted with its pods
			}
			configured, err := configuredIn(config.Data["config.conf"])
			if err != nil {
				f.Error(err)
			}
			mode := modeOf(configured)
			before, known := f.started[pod.UID]
			if known && before != mode && pod.DeletionTimestamp.IsZero() {
				f.Errorf("the configuration of pod %s changes from mode %s to %s", pod.Name, before, mode)
			}
			if n := f.nodes[pod.Spec.NodeName]; !known && n != nil {
				f.started[pod.UID] = mode
				delete(n.modes, other(mode))
			}
		}
	}
}

// message is what replumb would say on a node.
func (f *fixture) message(pod *corev1.Pod) string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.observe()
	r, n := &nodecleanup.TracesReport{}, f.nodes[pod.Spec.NodeName]
	args := strings.Join(pod.Spec.Containers[0].Args, " ")
	switch pod.Labels[taskpod.Label] {
	case nodepod.VerbCopyRules:
		if n.copied {
			r.Found = append(r.Found, proxyrules.EarlierCopy)
		}
		for mode := range n.modes {
			r.Found = append(r.Found, string(mode))
		}
		n.copied = n.copied || len(n.modes) > 0
	case nodepod.VerbCompareRules:
		f.restart(pod.Spec.NodeName)
		f.written(pod.Spec.NodeName)
		if mode := f.programs[pod.Spec.NodeName]; mode != "" {
			r.Found = append(r.Found, "kube-proxy says "+string(mode))
		}
		_, mode, _ := strings.Cut(args, "--mode=")
		mode, _, _ = strings.Cut(mode, " ")
		if !n.modes[v1alpha1.KubeProxyMode(mode)] {
			r.Problems = append(r.Problems, "10.96.0.1 tcp 443")
		}
	case nodepod.VerbClean:
		f.cleaned(n, args)
	case nodepod.VerbIPVS:
		leaveIPVS(n, args, r)
	case nodepod.VerbServices:
		f.written(pod.Spec.NodeName)
		if len(n.modes) == 0 {
			r.Problems = append(r.Problems, "kube-proxy has written no rule")
		}
	}
	body, err := r.Marshal()
	if err != nil {
		f.Error(err)
	}
	return string(body)
}

// written has the kube-proxies that run on a node write their rules.
func (f *fixture) written(node string) {
	if mode := f.programs[node]; mode != "" {
		f.nodes[node].modes[mode] = true
	}
	for _, pod := range append(f.pods("k8s-app"), f.pods(nameLabel)...) {
		if mode, started := f.started[pod.UID]; started && pod.Spec.NodeName == node && pod.DeletionTimestamp.IsZero() {
			f.nodes[node].modes[mode] = true
		}
	}
}

// leaveIPVS plays replumb node ipvs.
func leaveIPVS(n *rules, args string, r *nodecleanup.TracesReport) {
	if n.open > 0 && strings.Contains(args, "--timeout") {
		n.open--
		r.Problems = append(r.Problems, "1 to 10.96.0.20:80 tcp, from 10.244.0.5")
	}
	switch {
	case strings.Contains(args, "remove"):
		delete(n.modes, v1alpha1.KubeProxyIPVS)
	case n.modes[v1alpha1.KubeProxyIPVS]:
		r.Found = append(r.Found, "virtual servers: 3")
	}
}

func (f *fixture) cleaned(n *rules, args string) {
	switch {
	case strings.Contains(args, nodecleanup.ProxyBesideIPVS):
		delete(n.modes, v1alpha1.KubeProxyIPTables)
	case strings.Contains(args, nodecleanup.CopiedRules):
		n.copied = false
	case strings.Contains(args, nodecleanup.ProxyIPTables):
		delete(n.modes, v1alpha1.KubeProxyIPTables)
	case strings.Contains(args, nodecleanup.ProxyNFTables):
		delete(n.modes, v1alpha1.KubeProxyNFTables)
	default:
		f.Errorf("a node was cleaned by %s", args)
	}
}

// take looks at every event whether each node leads to Services.
func (f *fixture) take(e engine.Event) {
	f.Hear(e, func() {
		if f.heard != nil {
			f.heard(e)
		}
		f.observe()
		for name, n := range f.nodes {
			if len(n.modes) == 0 && !n.copied {
				f.Errorf("at step %s (%s) node %s leads to no Service", e.Step, e.Kind, name)
			}
		}
		if f.cut != "" && e.Step == f.cut && e.Kind == engine.StepStarted {
			f.cut = ""
			f.stop()
		}
	})
}

// run does something until a step begins, or to its end.
func (f *fixture) run(cut string, do func(context.Context) error) {
	f.Helper()
	ctx, stop := context.WithCancel(f.Context())
	defer stop()
	f.Mu.Lock()
	f.cut, f.stop = cut, stop
	f.Mu.Unlock()
	if err := do(ctx); (err != nil) != (cut != "") {
		f.Fatalf("until %q: %v", cut, err)
	}
}

func (f *fixture) apply(ctx context.Context) error {
	_, err := f.job.Apply(ctx, f.runner)
	return err
}

// require: the cluster is as its installer knows it, with that setting and rules of one mode, and
// of those that are left to finish.
func (f *fixture) require(configured string, left ...v1alpha1.KubeProxyMode) {
	f.Helper()
	sets := &appsv1.DaemonSetList{}
	f.Must(server.List(f.Context(), sets, client.InNamespace(metav1.NamespaceSystem)))
	configs := &corev1.ConfigMapList{}
	f.Must(server.List(f.Context(), configs, client.InNamespace(metav1.NamespaceSystem), client.HasLabels{v1alpha1.LabelMigration}))
	own := &sets.Items[0]
	if len(sets.Items) != 1 || len(configs.Items) != 0 || own.Spec.Template.Spec.Affinity != nil || own.Annotations[v1alpha1.AnnotationAffinity] != "" {
		f.Errorf("%d DaemonSets and %d ConfigMaps are left; the own one has affinity %v", len(sets.Items), len(configs.Items), own.Spec.Template.Spec.Affinity)
	}
	config := &corev1.ConfigMap{}
	f.Must(server.Get(f.Context(), client.ObjectKeyFromObject(own), config))
	if want := strings.Replace(ownConfig, `""`, configured, 1); config.Data["config.conf"] != want {
		f.Errorf("the configuration is\n%s\nwant\n%s", config.Data["config.conf"], want)
	}
	nodes := &corev1.NodeList{}
	f.Must(server.List(f.Context(), nodes))
	for _, n := range nodes.Items {
		if mark := n.Labels[v1alpha1.LabelKubeProxyMode]; mark != "" {
			f.Errorf("node %s is marked %s", n.Name, mark)
		}
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for name, n := range f.nodes {
		want := map[v1alpha1.KubeProxyMode]bool{modeOf(strings.Trim(configured, `"`)): true}
		for _, mode := range left {
			want[mode] = true
		}
		if n.copied || !maps.Equal(n.modes, want) {
			f.Errorf("node %s has %+v, want %v", name, *n, want)
		}
	}
}

// TestANodeJoins has a node that came while others were changed go their way, too, before the
// configuration changes that its kube-proxy reads. Then everything goes back.
func TestANodeJoins(t *testing.T) {
	f := setup(t)
	f.run("nobody", f.apply)
	f.Mu.Lock()
	f.nodes["c"] = &rules{modes: map[v1alpha1.KubeProxyMode]bool{v1alpha1.KubeProxyIPTables: true}}
	f.Mu.Unlock()
	fleet := &fakekubelet.Fleet{Client: server, Addresses: &fakekubelet.Counting{}}
	f.Must(fleet.Node(f.Context(), "c", netip.MustParseAddr("192.0.2.3")))
	f.Until("kube-proxy on the new node", func() bool {
		return slices.ContainsFunc(f.pods("k8s-app"), func(p corev1.Pod) bool { return p.Spec.NodeName == "c" })
	})
	f.run("", f.apply)
	f.require("nftables")
	f.run("", func(ctx context.Context) error { return f.job.Rollback(ctx, f.runner) })
	f.require(`""`)
}
