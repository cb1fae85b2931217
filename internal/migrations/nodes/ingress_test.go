package nodes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
)

// surveyOf is what a Migration with these fields finds: the nodes old, other and new, and no load
// balancer.
func surveyOf(t *testing.T, fields string, pods []corev1.Pod, services ...corev1.Service) *Inventory {
	t.Helper()
	m, err := spec.Parse([]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\n" +
		"spec: {nodes: {old: {cidrs: [10.1.0.0/16]}, new: {cidrs: [10.2.0.0/16]}" + fields + "}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	job, err := NewJob(migration.Deps{}, m)
	if err != nil {
		t.Fatal(err)
	}
	return &Inventory{
		Spec: job.Spec, Workloads: &rollout.State{}, Pods: pods, Services: services,
		Nodes: []corev1.Node{nodeAt("old", "10.1.0.1"), nodeAt("other", "10.1.0.2"), nodeAt("new", "10.2.0.1")},
	}
}

// edgeOf is a Service that only nodes with a pod of the app answer for; a switched one has been
// opened to all.
func edgeOf(app string, switched bool) corev1.Service {
	svc := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": app}, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
		},
	}
	if switched {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		svc.Annotations = map[string]string{v1alpha1.AnnotationTrafficPolicy: `{"externalTrafficPolicy":"Local"}`}
	}
	return svc
}

func of(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, UID: types.UID(name), Controller: &yes}}
	}
}

func ready(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

// TestEarly: which Services are Local again before old nodes are empty, and whose pods leave for
// that.
func TestEarly(t *testing.T) {
	daemon := func(p *corev1.Pod) { of("DaemonSet", "edge")(p); ready(p) }
	named := func(p *corev1.Pod) { of("StatefulSet", "edge")(p); ready(p) }
	for _, tt := range []struct {
		name, fields string
		pods         []corev1.Pod
		services     []corev1.Service
		early, ahead string
	}{
		{
			"all that is behind it goes first", "",
			[]corev1.Pod{podOn("other", "edge", "1", ready), podOn("old", "web", "1", ready)},
			[]corev1.Service{edgeOf("edge", false)},
			"shop/edge", "other",
		},
		{
			"its pods have moved, and a run was cut off", "",
			[]corev1.Pod{podOn("new", "edge", "1", ready), podOn("old", "web", "1", ready)},
			[]corev1.Service{edgeOf("edge", true)},
			"shop/edge", "",
		},
		{
			"it is restored, and a run was cut off", ", ingress: {services: [shop/edge]}",
			[]corev1.Pod{podOn("new", "edge", "1", ready), podOn("old", "web", "1", ready)},
			[]corev1.Service{edgeOf("edge", false)},
			"", "",
		},
		{
			"pods that end with their nodes", ", ingress: {services: [shop/edge]}",
			[]corev1.Pod{podOn("old", "edge", "1", daemon)},
			[]corev1.Service{edgeOf("edge", false)},
			"", "",
		},
		{
			"another one is not switched", ", ingress: {services: [shop/edge]}",
			[]corev1.Pod{podOn("old", "edge", "1", ready), podOn("old", "vpn", "1", ready)},
			[]corev1.Service{edgeOf("edge", false), edgeOf("vpn", false)},
			"", "",
		},
		{
			"others are named to go first", ", drain: {first: [shop/db]}",
			[]corev1.Pod{podOn("old", "edge", "1", named)},
			[]corev1.Service{edgeOf("edge", false)},
			"", "",
		},
		{
			"it is named to go first", ", drain: {first: [shop/edge]}",
			[]corev1.Pod{podOn("old", "edge", "1", named), podOn("other", "web", "1", ready)},
			[]corev1.Service{edgeOf("edge", false)},
			"shop/edge", "old",
		},
		{
			"pods may come to other old nodes", ", join: {room: Partial}",
			[]corev1.Pod{podOn("old", "edge", "1", ready)},
			[]corev1.Service{edgeOf("edge", false)},
			"", "",
		},
		{
			"ingress is left alone", ", ingress: {mode: Leave}",
			[]corev1.Pod{podOn("old", "edge", "1", ready)},
			[]corev1.Service{edgeOf("edge", false)},
			"", "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := surveyOf(t, tt.fields, tt.pods, tt.services...)
			early := s.Ingress().early()
			var ahead []string
			for _, n := range s.Ingress().ahead(early) {
				ahead = append(ahead, n.Name)
			}
			if got := strings.Trim(fmt.Sprint(early), "[]"); got != tt.early || strings.Join(ahead, " ") != tt.ahead {
				t.Errorf("got %s ahead on %v, want %s on %s", got, ahead, tt.early, tt.ahead)
			}
		})
	}
}

// TestServed: what has to be so before a Service is Local again.
func TestServed(t *testing.T) {
	unready := podOn("new", "edge", "1")
	unready.UID = "u"
	for _, tt := range []struct {
		name   string
		pods   []corev1.Pod
		before []types.UID
		says   string
	}{
		{"no pods", nil, nil, ""},
		{"all on new nodes", []corev1.Pod{podOn("new", "edge", "1", ready)}, nil, ""},
		{"one on an old node", []corev1.Pod{podOn("new", "edge", "1", ready), podOn("old", "edge", "1", ready)}, nil, "is on node old"},
		{"one that does not start", []corev1.Pod{podOn("new", "edge", "1", ready), unready}, nil, "is not ready: Running"},
		{"one that was not ready before", []corev1.Pod{podOn("new", "edge", "1", ready), unready}, []types.UID{"u"}, ""},
		{"only such a one", []corev1.Pod{unready}, []types.UID{"u"}, "no ready pod on a new node"},
		{"elsewhere alone", []corev1.Pod{podOn("third", "edge", "1", ready)}, nil, "no ready pod on a new node"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			svc := edgeOf("edge", true)
			before := map[types.UID]bool{}
			for _, uid := range tt.before {
				before[uid] = true
			}
			err := surveyOf(t, "", tt.pods, svc).Ingress().served(&svc, before)
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}

// TestRestoreIsForTheRest: what comes back early is not shown again in phase restore.
func TestRestoreIsForTheRest(t *testing.T) {
	daemon := func(p *corev1.Pod) { of("DaemonSet", "vpn")(p); ready(p) }
	s := surveyOf(t, ", ingress: {services: [shop/edge, shop/vpn]}",
		[]corev1.Pod{podOn("old", "edge", "1", ready), podOn("old", "vpn", "1", daemon)}, edgeOf("edge", false), edgeOf("vpn", false))
	nowhere, err := cluster.Connect(&rest.Config{Host: "http://192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	p := &Planner{Inventory: s, Base: migration.Base{Migration: &v1alpha1.Migration{}, Tools: migration.Deps{Cluster: nowhere}}}
	var all []string
	for _, g := range slices.Concat(p.drainOldNodes(), restorePolicies(p)) {
		for _, step := range g.Steps {
			if strings.HasPrefix(step.ID(), "ingress-back") {
				changes, err := engine.Preview(step)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range changes {
					all = append(all, step.ID()+": "+c.Object)
				}
			}
		}
	}
	want := []string{"ingress-back/early: Service shop/edge", "ingress-back: Service shop/vpn"}
	if !slices.Equal(all, want) {
		t.Errorf("got %q, want %q", all, want)
	}
}
