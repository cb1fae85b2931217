package rights

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/cert"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// mirrored has everything copied, and the names of the mirror in certificates.
const mirrored = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: mirror, annotations: {replumb.dev/singletons: Reviewed}}
spec:
  mirror:
    target: {context: mirror}
    hosts: [{name: shop.example.com, alias: shop.mirror.example.com}]
`

// certificates is cert-manager's kind, as far as it matters here, and what has names in certificates. The Secret has both names already,
// as the issuer would see to.
const certificates = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: certificates.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {kind: Certificate, plural: certificates, singular: certificate, listKind: CertificateList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: Secret
metadata: {name: tls, namespace: shop}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: shop, namespace: shop}
spec: {secretName: tls, dnsNames: [shop.example.com], issuerRef: {name: issuer}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop, namespace: shop, annotations: {cert-manager.io/issuer: issuer}}
spec:
  tls: [{hosts: [shop.example.com], secretName: tls}]
  defaultBackend: {service: {name: web, port: {number: 80}}}
`

// once are workloads that must not run twice, and a ConfigMap.
const once = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: mailer, namespace: shop, annotations: {replumb.dev/run-once: "true"}}
spec:
  selector: {matchLabels: {app: mailer}}
  template: {metadata: {labels: {app: mailer}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: ledger, namespace: shop, annotations: {replumb.dev/run-once: "true"}}
spec:
  serviceName: ledger
  selector: {matchLabels: {app: ledger}}
  template: {metadata: {labels: {app: ledger}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop}
spec:
  schedule: "0 3 1 1 *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: passing, namespace: shop}
`

// TestMirror: the roles are enough for whole mirrors, in the cluster that is copied and in the other, and all of them is needed.
func TestMirror(t *testing.T) {
	target, s := open(t, second), open(t, shared)
	s.must(os.WriteFile(s.file, []byte(mirrored), 0o600))
	s.Namespace(t, "shop")
	chain, key, err := cert.GenerateSelfSignedCertKey("shop.example.com", nil, []string{"shop.mirror.example.com"})
	s.must(err)
	encode := base64.StdEncoding.EncodeToString
	s.manifests(fmt.Sprintf(certificates, encode(chain), encode(key)) + once)
	s.workloads("web")
	for _, app := range []string{"mailer", "ledger"} {
		s.running(app)
	}
	s.reach(target)
	s.bind("-f", s.file)
	writes, reads := target.others()

	s.expect(3, viewer, []string{"check", "-f", s.file, "-o", "json"},
		"missing permission: watch,patch certificates.cert-manager.io (role replumb-mirror-operate)",
		"in the target: missing permission: create,patch,delete *.*")
	s.moves("mirror")
	s.expect(0, operator, []string{"rollback", "mirror", "--yes"})
	s.expect(0, operator, []string{"unfreeze"})
	s.must(s.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "passing"}}))
	s.expect(0, operator, []string{"apply", "-f", s.file})
	s.expect(0, operator, []string{"finish", "mirror", "--yes"})
	s.seen("mirror")

	roles := s.rolesOfMirror()
	s.audited(roles, unusedByMirrors(roles))
	const within = "what API servers ask for themselves when roles and bindings are written"
	target.audited(append(writes, reads...), map[string]string{
		"escalate roles.rbac.authorization.k8s.io":        within,
		"bind roles.rbac.authorization.k8s.io":            within,
		"escalate clusterroles.rbac.authorization.k8s.io": within,
		"bind clusterroles.rbac.authorization.k8s.io":     within,
	})
}

// reach has the users reach both clusters, the other by the context mirror.
func (s *scene) reach(target *scene) {
	s.Helper()
	s.access = map[string]string{}
	for _, user := range []string{operator, viewer} {
		s.access[user] = filepath.Join(filepath.Dir(s.file), user+".kubeconfig")
		s.must(apitest.Contexts(s.access[user], "source", map[string]apitest.Context{
			"source": {Server: s.Server}, "mirror": {Server: target.Server, As: user},
		}))
	}
}

// others gives the users what they need in the cluster that is a mirror: the operator all of it, the viewer what reads.
func (s *scene) others() (writes, reads access.Roles) {
	s.Helper()
	writes = mirror.TargetRoles(false)
	reads = access.Roles{{Purpose: access.View, Rules: []access.Rule{{Rights: access.Grant("*", "*", "", "get list")}}}}
	for user, roles := range map[string]access.Roles{operator: writes, viewer: reads} {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "in-the-mirror-" + user}}
		for _, r := range roles.Rights() {
			role.Rules = append(role.Rules, rbacv1.PolicyRule{
				APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: []string{r.Verb},
			})
		}
		s.must(s.any.Create(s.Context(), role))
		s.must(s.any.Create(s.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}))
	}
	s.since = s.stage.size(s.T)
	return writes, reads
}

// rolesOfMirror are those that replumb prints for the file: they name the kinds that this cluster has.
func (s *scene) rolesOfMirror() access.Roles {
	s.Helper()
	m := &v1alpha1.Migration{}
	s.must(yaml.Unmarshal([]byte(mirrored), m))
	job, err := mirror.NewJob(mirror.Deps{Deps: migration.Deps{Cluster: s.Cluster}}, m)
	s.must(err)
	roles, err := job.Roles(s.Context())
	s.must(err)
	return roles
}

// unusedByMirrors are the rights that no request takes here, with what would.
func unusedByMirrors(roles access.Roles) map[string]string {
	const (
		services = "unfreeze, where a migration of Services froze them"
		another  = "the freeze is another migration's"
	)
	all := map[string]string{
		"delete validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze":               services,
		"delete validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze":         services,
		"update validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze-deploys":       another,
		"update validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze-deploys": another,
	}
	for _, r := range roles.Rights() {
		if r.Verb == "get" && r.Name == "" && r.URL == "" {
			all[r.String()] = "an object whose copy was refused is read again, and Secrets that the Migration names"
		}
	}
	maps.Copy(all, unusedAround())
	return all
}
