package hostile

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Attacks by which the operator acts on another cluster than the one meant: by the Secret that holds the kubeconfig of a mirror's target, and
// by Migrations and plans that come from elsewhere.

// secretary may write one Secret, and nothing else: as what manages clusters.
func (s *scene) secretary() client.Client {
	s.Helper()
	s.must(client.IgnoreAlreadyExists(s.admin.Create(s.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenantSpace, Name: "secretary"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"target"}, Verbs: []string{"*"}},
		},
	})))
	s.must(client.IgnoreAlreadyExists(s.admin.Create(s.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenantSpace, Name: "secretary"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "secretary"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "secretary"}},
	})))
	return s.as("secretary", nil)
}

// mirrorTo writes the operator's file for a mirror whose target is in a Secret, and the Secret as its writer has it.
func (s *scene) mirrorTo(kubeconfig string) {
	s.Helper()
	writer := s.secretary()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenantSpace, Name: "target"},
		StringData: map[string]string{"value": kubeconfig},
	}
	s.eventually(func() error { // the authorizer hears of roles a moment later
		if err := client.IgnoreNotFound(writer.Delete(s.Context(), secret.DeepCopy())); err != nil {
			return err
		}
		return writer.Create(s.Context(), secret.DeepCopy())
	})
	s.write(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: mirror}
spec: {mirror: {target: {secret: {namespace: ` + tenantSpace + `, name: target}}}}
`)
}

// kubeconfig of a target, with more in its cluster and its user.
func kubeconfig(server, cluster, user string) string {
	return `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: c}}],
clusters: [{name: c, cluster: {server: "` + server + `"` + cluster + `}}], users: [{name: c, user: {` + user + `}}]}`
}

// another is a cluster with a UID, which lets no one do anything; asked is what it was asked for beyond who it is.
func (s *scene) another(uid string) (kubeconfig string, asked func() []string) {
	var mu sync.Mutex
	var all []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch r.URL.Path {
		case "/version":
			answer = map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
		case "/api/v1/namespaces/kube-system":
			answer = map[string]any{
				"apiVersion": "v1",
				"kind":       "Namespace",
				"metadata":   map[string]string{"name": "kube-system", "uid": uid},
			}
		default:
			mu.Lock()
			defer mu.Unlock()
			all = append(all, r.Method+" "+r.URL.Path)
			w.WriteHeader(http.StatusForbidden)
			answer = metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status:   "Failure",
				Reason:   metav1.StatusReasonForbidden,
				Code:     403,
			}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	s.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	data := ", certificate-authority-data: " + base64.StdEncoding.EncodeToString(ca)
	return kubeconfigOf(server.URL, data), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func kubeconfigOf(server, cluster string) string { return kubeconfig(server, cluster, "token: a") }

// TestSwappedTarget: who may write the Secret has it lead to a cluster of their own once the mirror has begun, to be sent its Secrets.
func TestSwappedTarget(t *testing.T) {
	s := ambush(t)
	config, asked := s.another("theirs")
	s.mirrorTo(config)
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "mirror"}, Spec: v1alpha1.MigrationSpec{
		Mirror: &v1alpha1.MirrorSpec{
			Target: v1alpha1.ClusterReference{Secret: &v1alpha1.KubeconfigSecret{Namespace: tenantSpace, Name: "target"}},
		},
	}}
	s.add(m)
	s.must(s.admin.Get(t.Context(), client.ObjectKey{Name: "mirror"}, m))
	m.Status.Mirror = &v1alpha1.MirrorStatus{Serving: v1alpha1.ServingSource, SourceUID: "source", TargetUID: "ours"}
	s.must(s.admin.Status().Update(t.Context(), m))
	for _, command := range [][]string{{"apply", "-f", s.file}, {"rollback", "-f", s.file, "--yes"}, {"finish", "-f", s.file, "--yes"}} {
		s.expect(s.replumb(command...), 3, "UID ours", "UID theirs", "nothing was changed or sent")
	}
	if all := asked(); len(all) > 0 {
		t.Errorf("the other cluster was asked for %q", all)
	}
}
