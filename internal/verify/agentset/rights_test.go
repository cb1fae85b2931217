//go:build apiserver && long

package agentset

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rbac"
)

// TestRightsSuffice: a user with the rights that are asked for, and no others, puts agents there
// and takes them away.
func TestRightsSuffice(t *testing.T) {
	f := setup(t)
	f.migration("m", v1alpha1.PhaseApplying)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "user"}}
	role.Rules = rbac.Rules(Rights(true))
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "user"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "user"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "user"}},
	}
	f.Must(server.Create(t.Context(), role))
	f.Must(server.Create(t.Context(), binding))
	t.Cleanup(func() {
		_ = server.Delete(context.Background(), role)
		_ = server.Delete(context.Background(), binding)
	})
	f.set.Cluster = f.as("user")
	f.Granted(f.set.Cluster, Rights(true))
	_, err := f.install(f.set)
	f.Must(err)
	_, err = f.remove(f.set)
	f.Must(err)
}

// putUp makes what agents need to report, without waiting for any.
func (f *fixture) putUp() {
	f.Helper()
	f.Change(func() { f.mute = []string{"a", "b"} })
	f.migration("m", v1alpha1.PhaseApplying)
	for _, g := range f.set.Install()[:2] {
		for _, step := range g.Steps {
			f.Must(engine.Drive(f.Context(), step))
		}
	}
}

// report is what an agent writes: about the migration, and as a status.
func report(node string, status map[string]any) *unstructured.Unstructured {
	r := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeReport", "metadata": map[string]any{"name": node},
	}}
	if status == nil {
		r.SetLabels(map[string]string{v1alpha1.LabelMigration: "m"})
		return r
	}
	r.Object["status"] = status
	return r
}

const reportedAt = "2026-01-02T03:04:05.000000Z"

func says(o v1alpha1.ProbeOrigin, instance string) map[string]any {
	return map[string]any{
		"agents": []any{map[string]any{"origin": string(o), "instance": instance, "sequence": int64(1), "reportedAt": reportedAt}},
		"probes": []any{map[string]any{
			"name": string(o) + "/name", "origin": string(o), "instance": instance, "kind": "HTTP", "address": "a:80", "since": reportedAt,
			"sent": int64(3), "failed": int64(0),
		}},
	}
}

func with(status map[string]any, field string, value any) map[string]any {
	status[field] = value
	return status
}

// write is how agents write: status or, if there is none, the rest.
func write(t *testing.T, c *cluster.Cluster, o v1alpha1.ProbeOrigin, r *unstructured.Unstructured) error {
	t.Helper()
	as := client.FieldOwner("replumb-agent-" + strings.ToLower(string(o)))
	body := client.ApplyConfigurationFromUnstructured(r)
	if r.Object["status"] == nil {
		return c.Apply(t.Context(), body, as, client.ForceOwnership)
	}
	return c.Status().Apply(t.Context(), body, as, client.ForceOwnership)
}

// TestAgentsMayReport: they see what they watch, write their reports, and nothing else. Only the
// one in the network of the node sees pods.
func TestAgentsMayReport(t *testing.T) {
	f := setup(t)
	f.putUp()
	for _, o := range []v1alpha1.ProbeOrigin{v1alpha1.FromHost, v1alpha1.FromPod} {
		c := f.agent(o, "a", "uid-"+string(o))
		sees := map[client.ObjectList]bool{
			&corev1.ServiceList{}: true, &v1alpha1.MigrationList{}: true, &corev1.PodList{}: o == v1alpha1.FromHost,
			&corev1.SecretList{}: false, &corev1.NodeList{}: false,
		}
		for list, may := range sees {
			err := c.List(t.Context(), list)
			if may != (err == nil) || !may && !apierrors.IsForbidden(err) {
				t.Errorf("%s: %T: %v", o, list, err)
			}
			if may {
				w, err := c.Watch(t.Context(), list)
				f.Must(err)
				w.Stop()
			}
		}
		if _, err := c.GetRaw(t.Context(), flagz); (o == v1alpha1.FromHost) != (err == nil) || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: the flags of an API server: %v", o, err)
		}
		f.Must(write(t, c, o, report("a", nil)))
		f.Must(write(t, c, o, report("a", says(o, "uid-"+string(o)))))
		if err := c.Delete(t.Context(), &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "a"}}); !apierrors.IsForbidden(err) {
			t.Errorf("removing a report: %v", err)
		}
	}
	// They follow on others of before, each beside the other network's.
	host := f.agent(v1alpha1.FromHost, "a", "uid-2")
	f.Must(write(t, host, v1alpha1.FromHost, report("a", nil)))
	next := with(says(v1alpha1.FromHost, "uid-2"), "barriers", []any{map[string]any{"sentinel": "s", "passedAt": reportedAt}})
	next = with(next, "connects", map[string]any{"instance": "uid-2", "connected": int64(1)})
	next = with(next, "apiServers", []any{map[string]any{"address": "10.0.0.5:6443", "seenAt": reportedAt, "sans": []any{"10.96.0.1"}}})
	f.Must(write(t, host, v1alpha1.FromHost, report("a", next)))
	f.Must(write(t, f.agent(v1alpha1.FromPod, "a", "uid-3"), v1alpha1.FromPod, report("a", says(v1alpha1.FromPod, "uid-3"))))
	r := &v1alpha1.NodeReport{}
	f.get(r, "a")
	if len(r.Status.Agents) != 2 || len(r.Status.Probes) != 2 || len(r.Status.Barriers) != 1 || len(r.Status.APIServers) != 1 {
		t.Errorf("the report is %+v", r.Status)
	}
}

// TestAgentsReportOfTheirNode has the token of one agent used for what is not its to say.
func TestAgentsReportOfTheirNode(t *testing.T) {
	f := setup(t)
	f.putUp()
	const host, pod = v1alpha1.FromHost, v1alpha1.FromPod
	for _, node := range []string{"a", "b"} {
		for _, o := range []v1alpha1.ProbeOrigin{host, pod} {
			c := f.agent(o, node, node+string(o))
			f.Must(write(t, c, o, report(node, nil)))
			f.Must(write(t, c, o, report(node, says(o, node+string(o)))))
		}
	}
	final, owned, other := report("a", nil), report("a", nil), report("a", nil)
	final.SetFinalizers([]string{"example.com/stay"})
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "a", UID: "1"}})
	other.SetLabels(map[string]string{v1alpha1.LabelMigration: "another"})
	both := says(host, "aHost")
	both["agents"] = append(both["agents"].([]any), says(pod, "aHost")["agents"].([]any)...)
	others := says(pod, "aPod")
	others["agents"] = nil
	others["probes"].([]any)[0].(map[string]any)["failed"] = int64(1)
	connects := with(says(host, "aHost"), "connects", map[string]any{"instance": "x", "connected": int64(9)})
	barriers := with(says(pod, "aPod"), "barriers", []any{map[string]any{"sentinel": "s", "passedAt": reportedAt}})
	servers := with(says(pod, "aPod"), "apiServers", []any{map[string]any{"address": "10.0.0.5:6443", "seenAt": reportedAt}})
	hosts, pods := f.agent(host, "a", "aHost"), f.agent(pod, "a", "aPod")
	for _, tt := range []struct {
		name string
		as   *cluster.Cluster
		o    v1alpha1.ProbeOrigin
		what *unstructured.Unstructured
	}{
		{"status of another node", hosts, host, report("b", says(host, "aHost"))},
		{"in the other node's name", hosts, host, report("b", says(host, "bHost"))},
		{"labels of another node", hosts, host, report("b", nil)},
		{"a report of a third node", hosts, host, report("c", nil)},
		{"a token of no node", f.as(userOf(host)), host, report("a", says(host, "aHost"))},
		{"instance of another pod", hosts, host, report("a", says(host, "aPod"))},
		{"another's probes", hosts, host, report("a", others)},
		{"the other agent's word", hosts, host, report("a", both)},
		{"connects of another instance", hosts, host, report("a", connects)},
		{"barriers by the pod's agent", pods, pod, report("a", barriers)},
		{"clients by the pod's agent", pods, pod, report("a", with(says(pod, "aPod"), "moreClients", int64(7)))},
		{"forgotten clients by the pod's agent", pods, pod, report("a", with(says(pod, "aPod"), "forgottenClients", int64(7)))},
		{"API servers by the pod's agent", pods, pod, report("a", servers)},
		{"a finalizer", hosts, host, final},
		{"an owner", hosts, host, owned},
		{"another migration", hosts, host, other},
	} {
		err := write(t, tt.as, tt.o, tt.what)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), reportsPolicy) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	r := &v1alpha1.NodeReport{}
	if f.get(r, "b"); len(r.Status.Agents) != 2 || r.Status.Agents[0].Instance[0] != 'b' {
		t.Errorf("the report of b is %+v", r.Status)
	}
	if f.get(&v1alpha1.NodeReport{}, "c") {
		t.Error("there is a report of c")
	}
}
