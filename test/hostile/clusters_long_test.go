//go:build long

package hostile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestKubeconfigFromASecret: who may write the one Secret with the target's kubeconfig has the operator's machine run a program, send a
// file as a token, or send all copied Secrets through a proxy.
func TestKubeconfigFromASecret(t *testing.T) {
	for _, tt := range []struct {
		name, field string
		kubeconfig  func(*scene) string
	}{
		{"exec", "user.exec", func(s *scene) string {
			command := s.touch().Exec.Command
			return kubeconfig("https://"+s.listener(), "", `exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /bin/sh, args: [-c, "`+command[2]+`"]}`)
		}},
		{"tokenFile", "user.tokenFile", func(s *scene) string {
			return kubeconfig("https://"+s.listener(), "", "tokenFile: "+s.bait("token"))
		}},
		{"client-key", "user.client-certificate", func(s *scene) string {
			return kubeconfig("https://"+s.listener(), "", "client-certificate: "+s.bait("cert")+", client-key: "+s.bait("key"))
		}},
		{"insecure", "cluster.insecure-skip-tls-verify", func(s *scene) string {
			return kubeconfig("https://"+s.listener(), ", insecure-skip-tls-verify: true", "token: a")
		}},
		{"proxy-url", "cluster.proxy-url", func(s *scene) string {
			return kubeconfig("https://192.0.2.1", `, proxy-url: "http://`+s.listener()+`"`, "token: a")
		}},
		{"http", "cluster.server", func(s *scene) string { return kubeconfig("http://"+s.listener(), "", "token: a") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := ambush(t)
			s.mirrorTo(tt.kubeconfig(s))
			s.expect(s.replumb("plan", "-f", s.file), 3, tt.field, tenantSpace+"/target", "--insecure-target-kubeconfig")
			s.expect(s.replumb("apply", "-f", s.file, "--yes"), 3, tt.field)
		})
	}
}

// TestMigrationOfAnotherCluster: a backup of one cluster is restored into another, or a writer of Migrations copies one there. What it
// says of addresses is true of the other.
func TestMigrationOfAnotherCluster(t *testing.T) {
	s := ambush(t)
	s.apply(0)
	s.forge(func(m *v1alpha1.Migration) {
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations["replumb.dev/cluster"] = "another"
	})
	s.refusesByName(migrationName, `recorded in the cluster with UID "another"`)
	s.apply(3, "nothing was changed")
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; !strings.HasPrefix(ip, "172.24.") {
		t.Errorf("service cart is at %s", ip)
	}
}

// TestPlanOfAnotherCluster: the plan that someone has looked at is of the staging cluster, and is given to this one.
func TestPlanOfAnotherCluster(t *testing.T) {
	s := ambush(t)
	made := s.replumb("plan", "-f", s.file, "-o", "json")
	s.expect(made, 0)
	doc := map[string]any{}
	s.must(json.Unmarshal([]byte(made.stdout), &doc))
	plan := filepath.Join(t.TempDir(), "plan.json")
	give := func() outcome {
		body, err := json.Marshal(doc)
		s.must(err)
		s.must(os.WriteFile(plan, body, 0o600))
		return s.replumb("apply", "-f", s.file, "--plan", plan)
	}
	own := doc["cluster"]
	doc["cluster"] = map[string]any{"uid": "staging", "server": "staging:6443"}
	s.expect(give(), 3, "staging", "nothing was changed")
	delete(doc, "cluster")
	s.expect(give(), 3, "does not say of which cluster it is")
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; ip != "172.31.3.7" {
		t.Errorf("service cart is at %s", ip)
	}
	doc["cluster"] = own
	s.expect(give(), 0)
}
