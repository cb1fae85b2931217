package hostile

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Attacks by those who may write Migrations on the machine of the operator: nothing in the cluster may have it run a
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

// plant has the writer of Migrations create one.
func (s *scene) plant(m *v1alpha1.Migration) *v1alpha1.Migration {
	s.Helper()
	writer := s.migrator()
	s.eventually(func() error { return writer.Create(s.Context(), m) })
	return m
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
