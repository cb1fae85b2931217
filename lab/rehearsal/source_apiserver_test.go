//go:build apiserver

package rehearsal

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/testing/apitest"
)

// source is a cluster that snapshots are taken of.
type source struct {
	*testing.T
	*apitest.Server
	store                    *store
	kubeconfig, replumb, dir string
	// ways is what the Migration says of spec.serviceCIDR besides.
	ways string
}

// newSource starts one with three nodes, whose kubelets are played.
func newSource(t *testing.T) *source {
	t.Helper()
	replumb, err := filepath.Abs("../../bin/replumb")
	if err == nil {
		_, err = os.Stat(replumb)
	}
	if err != nil {
		t.Fatalf("%v\nhint: make build", err)
	}
	s := &source{T: t, replumb: replumb, dir: t.TempDir()}
	s.Server, err = apitest.Run(oldRange, apitest.WithoutEndpoints())
	s.must(err)
	t.Cleanup(func() { s.must(s.Stop()) })
	s.store, err = openStore(s.Etcd)
	s.must(err)
	t.Cleanup(func() { s.must(s.store.close()) })
	f, err := newFront(s.Server, func(string) json.RawMessage {
		return json.RawMessage(`{"kubeletconfig":{"clusterDNS":["10.96.0.10"],"clusterDomain":"cluster.local"}}`)
	})
	s.must(err)
	t.Cleanup(f.close)
	s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
	s.must(f.kubeconfig(s.kubeconfig))
	s.Namespace(t, shop)
	for i := range 3 {
		s.node(i)
	}
	s.add(service(metav1.NamespaceSystem, "kube-dns", "10.96.0.10"))
	return s
}

func (s *source) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *source) add(o client.Object) {
	s.Helper()
	s.must(s.Create(s.Context(), o))
}

func (s *source) node(i int) {
	s.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i)},
		Spec:       corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.244.%d.0/24", i), PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i)}},
	}
	s.add(n)
	n.Status = corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", i+1)}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Played"}},
		NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", OSImage: "Debian"},
	}
	s.must(s.Status().Update(s.Context(), n))
	n.Spec.Taints = nil // no controller takes away the one that nodes get
	s.must(s.Update(s.Context(), n))
}

func service(namespace, name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"k8s-app": name}},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// deployment makes one with a ReplicaSet and pods that run, written where API servers keep them.
func (s *source) deployment(name string, pods int) []*corev1.Pod {
	s.Helper()
	labels, hash := map[string]string{"app": name}, map[string]string{"app": name, appsv1.DefaultDeploymentUniqueLabelKey: "h"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	replicas := int32(pods)
	d := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: meta(name, labels, nil),
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
		Status: appsv1.DeploymentStatus{
			ObservedGeneration: 1, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas,
			Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
			},
		},
	}
	template.Labels = hash
	rs := &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet"},
		ObjectMeta: meta(name+"-h", hash, metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))),
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: hash}, Template: template},
	}
	s.keep(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, d)
	s.keep(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, rs)
	var made []*corev1.Pod
	for i := range pods {
		p := podOf(rs, i)
		s.keep(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, p)
		made = append(made, p)
	}
	return made
}

func meta(name string, labels map[string]string, owner *metav1.OwnerReference) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: shop, Name: name, Labels: labels, UID: uuid.NewUUID(), Generation: 1, CreationTimestamp: metav1.Now().Rfc3339Copy(),
	}
	if owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return m
}

func podOf(rs *appsv1.ReplicaSet, i int) *corev1.Pod {
	since, ip := metav1.Now().Rfc3339Copy(), fmt.Sprintf("10.244.%d.%d", i%3, 2+i/3%250)
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: meta(
			fmt.Sprintf("%s-%d", rs.Name, i), rs.Labels, metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")),
		),
		Spec: rs.Spec.Template.Spec,
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, StartTime: &since,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "c", Image: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}},
			}},
		},
	}
	p.Spec.NodeName = fmt.Sprintf("node%d", i%3)
	return p
}

// keep writes an object into etcd, and the address of a Service.
func (s *source) keep(of schema.GroupVersionResource, o client.Object) {
	s.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	s.must(err)
	whole := &object{GroupVersionResource: of, Unstructured: &unstructured.Unstructured{Object: content}}
	all := []*object{whole}
	if of.Resource == "services" {
		all = append(all, allocated(whole)...)
	}
	s.store.put(s.Context(), all, func(_ *object, err error) {
		if err != nil {
			s.Error(err)
		}
	})
}

// keptService is a Service as API servers keep it.
func keptService(name, ip string) *corev1.Service {
	svc := service(shop, name, ip)
	svc.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	svc.ObjectMeta = meta(name, svc.Labels, nil)
	single, everywhere := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	svc.Spec.Type, svc.Spec.SessionAffinity = corev1.ServiceTypeClusterIP, corev1.ServiceAffinityNone
	svc.Spec.ClusterIPs, svc.Spec.IPFamilies = []string{ip}, []corev1.IPFamily{corev1.IPv4Protocol}
	svc.Spec.IPFamilyPolicy, svc.Spec.InternalTrafficPolicy = &single, &everywhere
	svc.Spec.Ports[0].Protocol = corev1.ProtocolTCP
	return svc
}

// snapshot takes one with replumb.
func (s *source) snapshot() string {
	s.Helper()
	file := filepath.Join(s.dir, fmt.Sprintf("cluster-%d.tar.gz", time.Now().UnixNano()))
	out, err := exec.CommandContext(s.Context(), s.replumb, "snapshot", "--file", file, "--kubeconfig", s.kubeconfig).CombinedOutput()
	if err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	s.Logf("%s", out)
	return file
}

// rehearse rehearses a move, with the way back if that is asked for.
func (s *source) rehearse(file string, back bool, inspect func(context.Context, client.Client) error) *Report {
	s.Helper()
	move := filepath.Join(s.dir, "move.yaml")
	s.must(os.WriteFile(move, []byte(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: move}
spec:
  serviceCIDR: {to: [`+newRange+`], apiServers: ["192.0.2.11:6443"]`+s.ways+`}
  notify: [{urlFromEnv: NOWHERE_URL}]
`), 0o600))
	begun := time.Now()
	m := &rehearsal{inspect: inspect, Options: Options{
		Snapshot: file, Migration: move, Replumb: s.replumb, Back: back,
		Assets:   func(context.Context) (string, error) { return os.Getenv("KUBEBUILDER_ASSETS"), nil },
		Progress: func(f string, args ...any) { s.Logf("%5.1fs %s", time.Since(begun).Seconds(), fmt.Sprintf(f, args...)) },
	}}
	r, err := m.run(s.Context())
	s.must(err)
	var text strings.Builder
	s.must(r.Text(&text))
	s.Log(text.String())
	return r
}
