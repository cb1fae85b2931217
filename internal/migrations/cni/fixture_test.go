//go:build apiserver

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/crash"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/testing/migrationtest"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

// lazy is shared by the tests of this package; each begins with an empty cluster. Its controllers
// are real, its nodes are played.
var (
	lazy   = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{apitest.Calico(), apitest.Controllers()}}
	server *apitest.Server
)

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

const patience = 60 * time.Second

// fixture is a cluster of two nodes with flannel. What the agents of replumb would find there is
// made up.
type fixture struct {
	*migrationtest.Stage
	// operator is the cluster as a user sees it who has the roles, and no other rights.
	operator *cluster.Cluster
	requests *migrationtest.Requests
	fleet    *fakekubelet.Fleet
	job      *Job
	runner   *engine.Runner
	dir      string

	// left is what is found on each node, clients whom they serve, deaf says that a closed port is
	// closed indeed.
	left    map[string][]string
	clients []string
	shut    bool
	// mute says that pods do not reach each other, masked that kube-proxy gives what goes by
	// Services to other nodes the address of a node.
	mute, masked bool
	// says, if set, is asked first what replumb would find on a node; nil is nothing to it.
	says func(*corev1.Pod) *nodecleanup.TracesReport
}

func sample(dir string) *v1alpha1.Migration {
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{CNI: &v1alpha1.CNISpec{
			To: v1alpha1.Calico, Manifests: []string{dir}, GateWait: &metav1.Duration{Duration: patience},
			Traffic: v1alpha1.TrafficSpec{Window: &metav1.Duration{Duration: 4 * time.Second}},
			Vouch:   v1alpha1.CNIVouchSpec{KubeProxy: true}, // the cluster has none
		}},
	}
}

// drainedRoles are the roles that mode Drained takes: those of agents, and the one of mode InPlace,
// are for the other mode.
func drainedRoles() access.Roles {
	j := &Job{}
	j.Migration = &v1alpha1.Migration{}
	return j.roles()
}

const flannelObjects = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: flannel, namespace: kube-flannel}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: flannel}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-flannel-cfg, namespace: kube-flannel}
data: {net-conf.json: '{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}'}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-flannel-ds, namespace: kube-flannel}
spec:
  selector: {matchLabels: {app: flannel}}
  template:
    metadata: {labels: {app: flannel}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers: [{name: kube-flannel, image: flannel}]
`

const calicoObjects = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: calico-node, namespace: kube-system, labels: {k8s-app: calico-node}}
spec:
  selector: {matchLabels: {k8s-app: calico-node}}
  template:
    metadata: {labels: {k8s-app: calico-node}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers: [{name: calico-node, image: calico}]
---
apiVersion: example.com/v1
kind: Wire
metadata: {name: one}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: wires.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {kind: Wire, plural: wires, singular: wire, listKind: WireList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: new}
spec: {cidr: 10.245.0.0/16, blockSize: 26, natOutgoing: true, nodeSelector: all()}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: calico-config, namespace: kube-system}
data: {cni_network_config: '{"plugins":[{"type":"calico"},{"type":"portmap"}]}'}
`

func setup(t *testing.T, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	server = lazy.Get(t)
	clean(t)
	for _, ns := range []string{"shop", "kube-flannel"} {
		server.Namespace(t, ns)
	}
	f := &fixture{Stage: migrationtest.New(t, server), dir: t.TempDir(), left: map[string][]string{}}
	f.fleet = &fakekubelet.Fleet{Client: server, Phase: phaseOf, Message: f.message, Addresses: &fakekubelet.Blocks{Client: server}}
	for name, address := range map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"} {
		f.Must(f.fleet.Node(f.Context(), name, netip.MustParseAddr(address)))
		f.left[name] = []string{"interface cni0", "interface flannel.1"}
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); f.fleet.Run(ctx) }()
	t.Cleanup(func() { clean(t); stop(); <-ended }) // pods need their kubelets to end
	f.pool("old", "10.244.0.0/16")
	m := sample(f.dir)
	for _, c := range change {
		c(m)
	}
	job, err := NewJob(switchover.Deps{}, m)
	f.Must(err)
	f.operator, f.requests = migrationtest.Operator(t, server, job.roles())
	f.with(m)
	f.apply(flannelObjects)
	f.Must(os.WriteFile(filepath.Join(f.dir, "calico.yaml"), []byte(calicoObjects), 0o600))
	f.Until("flannel", func() bool { return len(f.pods("kube-flannel", "flannel")) == 2 })
	f.runner = &engine.Runner{Sink: f.take, Deadline: patience}
	return f
}

// with makes the job of a Migration.
func (f *fixture) with(m *v1alpha1.Migration) {
	f.Helper()
	everything, err := server.Any()
	f.Must(err)
	f.job, err = NewJob(
		switchover.Deps{Deps: migration.Deps{Cluster: crash.Watch(f.T, f.operator), Image: pull.Image{Name: "replumb"}}, Any: everything},
		m,
	)
	f.Must(err)
	f.job.Holder = migrationtest.Killed()
}

func (f *fixture) forward() error {
	f.Helper()
	_, err := f.job.Apply(f.Context(), f.runner)
	return err
}

func phaseOf(pod *corev1.Pod) corev1.PodPhase {
	if pod.Labels[taskpod.Label] != "" || pod.Labels[connectivity.Label] == "ask" {
		return corev1.PodSucceeded
	}
	return corev1.PodRunning
}

// message is what replumb would say on a node.
func (f *fixture) message(pod *corev1.Pod) string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if f.says != nil {
		if r := f.says(pod); r != nil {
			return marshalled(r)
		}
	}
	r := &nodecleanup.TracesReport{}
	switch node := pod.Spec.NodeName; pod.Labels[taskpod.Label] {
	case "clean":
		if pod.Spec.Containers[0].Args[2] == "flannel" {
			r.Found, f.left[node] = f.left[node], nil
		}
	case "residue":
		if pod.Spec.Containers[0].Args[2] == "flannel" {
			r.Found = f.left[node]
		}
	case "traffic":
		r.Clients = f.clients
	default:
		return f.answers(pod)
	}
	return marshalled(r)
}

func marshalled(r *nodecleanup.TracesReport) string {
	body, err := r.Marshal()
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func (f *fixture) answers(pod *corev1.Pod) string {
	var out strings.Builder
	for _, a := range pod.Spec.Containers[0].Args {
		at, dial := strings.CutPrefix(a, testpod.Dial)
		switch {
		case strings.HasPrefix(a, testpod.Try) && f.shut, dial && f.mute && strings.HasPrefix(at, "10."),
			dial && f.masked && !f.near(at, pod.Spec.NodeName):
			out.WriteByte(testpod.No)
		case strings.HasPrefix(a, testpod.Try), dial, strings.HasPrefix(a, testpod.LookUp):
			out.WriteByte(testpod.Yes)
		}
	}
	return out.String()
}

// near reports whether the policy of the canaries lets a call from a node in that was given the
// node's address: it does where it is answered, or may be, on the same node, and where no Service
// is called.
func (f *fixture) near(at, node string) bool {
	services := &corev1.ServiceList{}
	pods := &corev1.PodList{}
	system := client.InNamespace(v1alpha1.SystemNamespace)
	ctx := context.WithoutCancel(f.Context())
	if err := errors.Join(server.List(ctx, services, system), server.List(ctx, pods, system)); err != nil {
		f.Error(err)
	}
	for _, s := range services.Items {
		if !strings.HasPrefix(at, s.Spec.ClusterIP+":") {
			continue
		}
		selected := labels.SelectorFromSet(s.Spec.Selector)
		return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
			return selected.Matches(labels.Set(p.Labels)) && p.Spec.NodeName == node
		})
	}
	return true
}

func (f *fixture) take(e engine.Event) {
	f.Hear(e, func() { f.follow(e) })
}

// follow has what is outside of a run go along with it.
func (f *fixture) follow(e engine.Event) {
	if e.Kind != engine.StepDone {
		return
	}
	switch e.Step { // new pods get addresses of the network that is there
	case "begin":
		f.disable("old", true)
	case "since/calico":
		f.shut = true
	case "since/flannel":
		f.disable("old", false)
	}
}

func (f *fixture) pool(name, cidr string) {
	f.Helper()
	pool := calico.Empty("IPPool", name)
	pool.Object["spec"] = map[string]any{"cidr": cidr, "blockSize": int64(26), "natOutgoing": true}
	f.Must(server.Create(f.Context(), pool))
}

// disable a pool, or enable it: a network that is not there gives out no addresses.
func (f *fixture) disable(name string, disabled bool) {
	body := fmt.Appendf(nil, `{"spec":{"disabled":%t}}`, disabled)
	err := server.Patch(context.WithoutCancel(f.Context()), calico.Empty("IPPool", name), client.RawPatch(types.MergePatchType, body))
	if err != nil {
		f.Error(err)
	}
}

func (f *fixture) apply(text string) {
	f.Helper()
	objects, err := manifests.Decode("test", []byte(text))
	f.Must(err)
	for _, o := range objects {
		f.Must(f.job.Deps.Any.Create(f.Context(), o))
	}
}

func (f *fixture) pods(namespace, app string) []corev1.Pod {
	f.Helper()
	all := &corev1.PodList{}
	f.Must(server.List(f.Context(), all, client.InNamespace(namespace), client.MatchingLabels{"app": app}))
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() || !connectivity.Ready(&p) })
}

func (f *fixture) deployment(name string, n int32) {
	f.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels: labels,
				},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
	f.Must(server.Create(f.Context(), d))
	f.Until("pods of "+name, func() bool { return len(f.pods("shop", name)) == int(n) })
}

func (f *fixture) bare(name string) *corev1.Pod {
	f.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	f.Must(server.Create(f.Context(), p))
	f.Until("pod "+name, func() bool { return len(f.pods("shop", name)) == 1 })
	return p
}

func (f *fixture) have(kind, namespace, name string, group string) *unstructured.Unstructured {
	f.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(group)
	o.SetKind(kind)
	have, err := f.job.Deps.Get(f.Context(), o.GroupVersionKind(), client.ObjectKey{Namespace: namespace, Name: name})
	f.Must(err)
	return have
}

func (f *fixture) status() *v1alpha1.MigrationStatus {
	f.Helper()
	m, err := migration.Get(f.Context(), server, "m")
	f.Must(err)
	if m == nil {
		return &v1alpha1.MigrationStatus{}
	}
	return &m.Status
}

func (f *fixture) did(step string) bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return slices.ContainsFunc(f.Events, func(e engine.Event) bool { return e.Kind == engine.StepDone && e.Step == step })
}

// clean removes what tests make, workloads before their pods and pods before their nodes.
func clean(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	kinds := func(version, kind string) client.ObjectList {
		list := &metav1.PartialObjectMetadataList{}
		list.APIVersion, list.Kind = version, kind+"List"
		return list
	}
	var everywhere []client.ObjectList
	for _, kind := range []string{"IPPool", "IPAMBlock", "BlockAffinity", "IPAMHandle"} {
		everywhere = append(everywhere, kinds(manifests.CalicoGroup+"/v1", kind))
	}
	everywhere = append([]client.ObjectList{
		&appsv1.DeploymentList{}, &appsv1.DaemonSetList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}, &networkingv1.NetworkPolicyList{},
		&policyv1.PodDisruptionBudgetList{},
	}, append(everywhere, &corev1.NodeList{})...)
	everything, err := server.Any()
	if err != nil {
		t.Fatal(err)
	}
	migrationtest.Clear(t, server, everywhere...)
	objects, err := manifests.Decode("test", []byte(flannelObjects+"---"+calicoObjects))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if err := client.IgnoreNotFound(everything.Delete(ctx, o)); err != nil && !meta.IsNoMatchError(err) {
			t.Fatal(err)
		}
	}
	server.Clean(t)
}
