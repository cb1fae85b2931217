package hostile

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Attacks by those who may write Migrations, or one Secret, on the machine of the operator: nothing in the cluster may have it run a
// program, connect somewhere, or open a file.

// ambush is a scene with an operator's machine that keeps its agreements in a folder of its own.
func ambush(t *testing.T) *scene {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	return begin(t)
}

// migrator may write Migrations and their status, and nothing else: as what restores backups, or syncs them from Git.
func (s *scene) migrator() client.Client {
	s.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "migrator"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"migrations", "migrations/status"}, Verbs: []string{"*"},
	}}}
	s.must(client.IgnoreAlreadyExists(s.admin.Create(s.Context(), role)))
	s.must(client.IgnoreAlreadyExists(s.admin.Create(s.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "migrator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "migrator"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "migrator"}},
	})))
	return s.as("migrator", nil)
}

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

// plant has the writer of Migrations create one.
func (s *scene) plant(m *v1alpha1.Migration) *v1alpha1.Migration {
	s.Helper()
	writer := s.migrator()
	s.eventually(func() error { return writer.Create(s.Context(), m) })
	return m
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

// bait is a file that no one has opened if the test ends well.
func (s *scene) bait(name string) string {
	s.Helper()
	path := filepath.Join(s.TempDir(), name)
	s.must(syscall.Mkfifo(path, 0o600))
	opened := make(chan bool, 1)
	go func() { // lasts until there is a reader
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		opened <- err == nil
		if err == nil {
			_ = f.Close()
		}
	}()
	s.Cleanup(func() {
		select {
		case <-opened:
			s.Errorf("%s was opened", name)
		default: // has the goroutine end
			if f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
				<-opened
				_ = f.Close()
			}
		}
	})
	return path
}

// listener is an address that no one has connected to if the test ends well.
func (s *scene) listener() string {
	s.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	var mu sync.Mutex
	count := 0
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			count++
			mu.Unlock()
			_ = conn.Close()
		}
	}()
	s.Cleanup(func() {
		_ = l.Close()
		<-ended
		mu.Lock()
		defer mu.Unlock()
		if count > 0 {
			s.Errorf("the listener got %d connections", count)
		}
	})
	return l.Addr().String()
}

// refusesByName fails the test unless every command that goes on with a Migration by its name is refused, and changes nothing.
func (s *scene) refusesByName(name string, texts ...string) {
	s.Helper()
	for _, command := range [][]string{{"rollback", name, "--yes"}, {"finish", name, "--yes"}, {"resume", name}} {
		s.expect(s.replumb(command...), 3, append(texts, "nothing was changed")...)
	}
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

// TestFilesFromTheCluster: a writer of Migrations names files of the operator's machine: certificates and a snapshot of etcd, and a key
// for DNS. It would have them read, sent, or, with a snapshot, written as root.
func TestFilesFromTheCluster(t *testing.T) {
	s := ambush(t)
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	s.plant(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "vpc"}, Spec: v1alpha1.MigrationSpec{
		Desired: v1alpha1.DesiredApplied,
		Nodes: &v1alpha1.NodesSpec{
			Old: v1alpha1.NodeSet{CIDRs: []string{"172.30.0.0/24"}}, New: v1alpha1.NodeSet{CIDRs: []string{"172.31.0.0/24"}},
			ControlPlane: &v1alpha1.ControlPlaneSpec{Etcd: v1alpha1.EtcdSpec{
				Endpoints: []string{"https://" + s.listener()}, CAFile: s.bait("ca"), CertFile: s.bait("cert"), KeyFile: s.bait("key"),
				SnapshotFile: snapshot, SnapshotUnencrypted: true,
			}},
			Records: []v1alpha1.RecordSpec{{
				Name: "a.example.com", From: []string{"192.0.2.1"}, To: []string{"192.0.2.2"},
				Provider: v1alpha1.RecordProvider{RFC2136: &v1alpha1.RFC2136Provider{
					Server: s.listener(), Zone: "example.com", TSIGKeyFile: s.bait("tsig"),
				}},
			}},
		},
	}})
	s.expect(s.replumb("status", "vpc"), 0)
	s.refusesByName("vpc", "etcd.caFile reads", "etcd.snapshotFile writes", "tsigKeyFile reads", "rfc2136.server connects to")
	if _, err := os.Stat(snapshot); err == nil {
		t.Error("the snapshot was written")
	}
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
