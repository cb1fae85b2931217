//go:build long

package hostile

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// forge has the writer of Migrations change the one in the cluster.
func (s *scene) forge(change func(*v1alpha1.Migration)) {
	s.Helper()
	writer := s.migrator()
	s.eventually(func() error {
		m := &v1alpha1.Migration{}
		if err := writer.Get(s.Context(), client.ObjectKey{Name: migrationName}, m); err != nil {
			return err
		}
		change(m)
		return writer.Update(s.Context(), m)
	})
}

// touch is a program that leaves a marker, which was not run if the test ends well.
func (s *scene) touch() v1alpha1.Action {
	s.Helper()
	marker := filepath.Join(s.TempDir(), "marker")
	s.Cleanup(func() {
		if _, err := os.Stat(marker); err == nil {
			s.Error("the program was run")
		}
	})
	return v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"/bin/sh", "-c", "touch " + marker}}}
}

// TestStatusRunsNothing: a writer of Migrations has the one who asks for the status, of any Migration, run a program. It would have the
// operator's kubeconfig and credentials.
func TestStatusRunsNothing(t *testing.T) {
	s := ambush(t)
	s.plant(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: migrationName}, Spec: v1alpha1.MigrationSpec{
		ServiceCIDR: &v1alpha1.ServiceCIDRSpec{From: []string{oldRange}, To: []string{newRange}},
		Tiers:       []v1alpha1.TierSpec{{Name: "web"}, {Name: "core"}},
		TierLookup:  &v1alpha1.TierLookup{Action: s.touch()},
		Hooks:       []v1alpha1.Hook{{Name: "h", When: v1alpha1.BeforePhase, Action: s.touch()}},
		Notify:      []v1alpha1.Notifier{{HTTPAction: v1alpha1.HTTPAction{URL: "http://" + s.listener()}}},
	}})
	s.expect(s.replumb("status"), 0, "unknown (lookup not asked)")
	s.expect(s.replumb("status", migrationName, "-o", "json"), 0)
	s.expect(s.replumb("report", migrationName, "-o", "json"), 0)
	s.expect(s.replumb("pause", migrationName), 0)
}

// TestHooksFromTheCluster: a writer of Migrations adds a hook to one that the operator has applied, and waits for what comes next.
func TestHooksFromTheCluster(t *testing.T) {
	s := ambush(t)
	s.apply(0, "cluster: context")
	s.forge(func(m *v1alpha1.Migration) {
		m.Spec.Hooks = []v1alpha1.Hook{{Name: "h", When: v1alpha1.BeforePhase, Action: s.touch()}}
	})
	s.refusesByName(migrationName, "--allow-calls", "spec.hooks[0].exec.command runs")
	s.expect(s.replumb("rollback", migrationName, "--yes", "--allow-calls", strings.Repeat("0", 64)), 3, "have the digest")
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; !strings.HasPrefix(ip, "172.24.") {
		t.Errorf("service cart is at %s", ip)
	}
	s.expect(s.replumb("rollback", "-f", s.file, "--yes"), 0, "changed spec.hooks")
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; ip != "172.31.3.7" {
		t.Errorf("service cart is at %s", ip)
	}
}

// TestChangedCommand: a writer of Migrations changes one argument of a hook that the operator has written, and agreed to by apply -f.
func TestChangedCommand(t *testing.T) {
	s := ambush(t)
	body, err := os.ReadFile(s.file)
	s.must(err)
	s.write(string(body) + "  hooks: [{name: h, when: BeforePhase, exec: {command: [/bin/sh, -c, 'exit 0']}}]\n")
	s.apply(0)
	var was v1alpha1.Hook
	evil := s.touch()
	s.forge(func(m *v1alpha1.Migration) { was, m.Spec.Hooks[0].Action = m.Spec.Hooks[0], evil })
	s.refusesByName(migrationName, "not agreed to on this machine")
	s.forge(func(m *v1alpha1.Migration) { m.Spec.Hooks[0] = was })
	s.expect(s.replumb("rollback", migrationName, "--yes"), 0) // what was agreed to goes on
}

// TestGateActionsFromTheCluster: a writer of Migrations names a program and a URL for what gates wait for, in one that the operator has applied.
func TestGateActionsFromTheCluster(t *testing.T) {
	s := ambush(t)
	s.apply(0)
	s.forge(func(m *v1alpha1.Migration) {
		program := s.touch()
		m.Spec.ServiceCIDR.Actions = &v1alpha1.GateActions{
			Certificates: &program, APIServers: &program,
			Kubelets: &v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: "http://" + s.listener()}},
		}
	})
	s.refusesByName(
		migrationName,
		"spec.serviceCIDR.actions.certificates.exec.command runs",
		"spec.serviceCIDR.actions.apiServers.exec.command runs",
		"spec.serviceCIDR.actions.kubelets.http.url connects to",
	)
}

// TestAgreedByDigest is no attack: on another machine the operator agrees to what is printed, once, and by that alone.
func TestAgreedByDigest(t *testing.T) {
	s := ambush(t)
	s.apply(0)
	s.forge(func(m *v1alpha1.Migration) {
		m.Spec.Hooks = []v1alpha1.Hook{{Name: "h", When: v1alpha1.BeforePhase, Action: v1alpha1.Action{
			Exec: &v1alpha1.ExecAction{Command: []string{"/bin/sh", "-c", "exit 0"}},
		}}}
	})
	refused := s.replumb("rollback", migrationName, "--yes")
	s.expect(refused, 3)
	found := regexp.MustCompile("--allow-calls ([0-9a-f]{64})").FindStringSubmatch(refused.stderr)
	if found == nil {
		t.Fatalf("no digest in %s", refused.stderr)
	}
	s.expect(s.replumb("rollback", migrationName, "--yes", "--allow-calls", found[1]), 0)
	files, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "replumb", "calls", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestNotifyFromTheCluster: a writer of Migrations has the operator's machine post to an address of the operator's own network.
func TestNotifyFromTheCluster(t *testing.T) {
	s := ambush(t)
	s.apply(0)
	s.forge(func(m *v1alpha1.Migration) {
		m.Spec.Notify = []v1alpha1.Notifier{{HTTPAction: v1alpha1.HTTPAction{URL: "http://" + s.listener() + "/latest/meta-data"}}}
	})
	s.refusesByName(migrationName, "spec.notify[0].url connects to")
}

// TestStatusOfAMirrorOpensNothing: a writer of Migrations, and of their status, has the one who asks for the status read a file as a key, and
// ask a server of the writer's.
func TestStatusOfAMirrorOpensNothing(t *testing.T) {
	s := ambush(t)
	m := s.plant(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "mirror"}, Spec: v1alpha1.MigrationSpec{
		Mirror: &v1alpha1.MirrorSpec{
			Target: v1alpha1.ClusterReference{Context: "production"},
			Redirect: v1alpha1.RedirectSpec{Resolvers: []string{s.listener()}, Provider: &v1alpha1.RecordProvider{
				RFC2136: &v1alpha1.RFC2136Provider{Server: s.listener(), Zone: "example.com", TSIGKeyFile: s.bait("tsig")},
			}},
		},
	}})
	m.Status.Mirror = &v1alpha1.MirrorStatus{Serving: v1alpha1.ServingSource, Names: []v1alpha1.RedirectName{{
		Name: "a.example.com", Type: v1alpha1.RecordA, From: []string{"192.0.2.1"}, To: []string{"192.0.2.2"},
	}}}
	s.must(s.migrator().Status().Update(t.Context(), m))
	s.expect(s.replumb("status", "mirror"), 0, "unknown (name servers not asked)")
	s.refusesByName("mirror", "target.context connects to")
}
