package rights

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

// The users: one has the roles for all purposes that its migration takes, the other those to view.
const operator, viewer = "operator", "viewer"

// scene is a cluster whose nodes are played, and a Migration in a file.
type scene struct {
	*testing.T
	*apitest.Server
	stage stage
	any   client.Client
	fleet *fakekubelet.Fleet
	file  string
	// access is the kubeconfig of a user. Default: the API server's own.
	access map[string]string
	// since is how long the audit log was at the beginning.
	since int64
}

// begin makes the scene of a migration in a cluster with Calico's pools.
func begin(t *testing.T, kind, migration string) *scene {
	t.Helper()
	s := open(t, shared)
	s.start(kind, migration)
	return s
}

// open empties a cluster, and gives it two nodes and a pool.
func open(t *testing.T, on stage) *scene {
	t.Helper()
	s := empty(t, on)
	s.play(&fakekubelet.Blocks{Client: s}, message)
	s.furnish()
	return s
}

// furnish gives it two nodes, and a pool that pods get addresses of.
func (s *scene) furnish() {
	s.Helper()
	s.node("node1", "192.0.2.1")
	s.node("node2", "192.0.2.2")
	information := calico.Empty("ClusterInformation", "default")
	information.Object["spec"] = map[string]any{"datastoreReady": true}
	s.must(s.Create(s.Context(), information))
	pool := calico.Empty("IPPool", "default")
	pool.Object["spec"] = map[string]any{"cidr": "10.244.0.0/24", "blockSize": int64(28), "vxlanMode": "CrossSubnet", "natOutgoing": true}
	s.must(s.Create(s.Context(), pool))
}

// empty has nothing but what API servers make.
func empty(t *testing.T, on stage) *scene {
	t.Helper()
	s := &scene{T: t, Server: on.server.Get(t), stage: on, file: filepath.Join(t.TempDir(), "move.yaml")}
	s.must(s.Wipe(t.Context()))
	everything, err := s.Any()
	s.must(err)
	s.any = everything
	return s
}

// start writes the Migration to its file, and gives the users the roles of its kind.
func (s *scene) start(kind, migration string) {
	s.Helper()
	s.must(os.WriteFile(s.file, []byte(migration), 0o600))
	s.Namespace(s.T, "shop")
	s.bind(kind)
}

// bind gives the users what replumb prints as roles, by a kind or by a file. What they do from now on counts.
func (s *scene) bind(of ...string) {
	s.Helper()
	for user, purposes := range map[string][]string{operator: nil, viewer: {"--for", "view"}} {
		s.manifests(s.replumb("", slices.Concat([]string{"rbac"}, of, []string{"--user", user}, purposes)...).stdout)
	}
	s.since = s.stage.size(s.T)
}

// play has kubelets and agents played until the test ends. Pods that have ended say what say does.
func (s *scene) play(addresses fakekubelet.Addresses, say func(*corev1.Pod) string) {
	s.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s.fleet = &fakekubelet.Fleet{Client: s, Addresses: addresses, Phase: phase, Message: say}
	agents := &fakekubelet.Agents{Client: s}
	var playing sync.WaitGroup
	playing.Go(func() { s.fleet.Run(ctx) })
	playing.Go(func() { agents.Run(ctx) })
	s.Cleanup(func() { stop(); playing.Wait() })
}

// node joins.
func (s *scene) node(name, address string) {
	s.Helper()
	s.must(s.fleet.Node(s.Context(), name, netip.MustParseAddr(address)))
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// manifests makes all objects of a YAML file, as an administrator does, and takes those for good that are there.
func (s *scene) manifests(text string) {
	s.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		if decoder.Decode(&o.Object) != nil {
			return
		}
		if o.Object == nil {
			continue
		}
		s.eventually(func() error { return client.IgnoreAlreadyExists(s.any.Create(s.Context(), o.DeepCopy())) })
	}
}

// moves has the operator apply, what the viewer can only read.
func (s *scene) moves(name string) {
	s.Helper()
	s.expect(3, viewer, []string{"plan", "-f", s.file})
	s.expect(0, operator, []string{"check", "-f", s.file})
	s.expect(0, operator, []string{"apply", "-f", s.file})
	s.seen(name)
}

// movesForGood has the operator go back, apply once more, and finish after what is done by others.
func (s *scene) movesForGood(name string, others ...func()) {
	s.Helper()
	s.expect(0, operator, []string{"rollback", name, "--yes"})
	s.expect(0, operator, []string{"apply", "-f", s.file})
	for _, do := range others {
		do()
	}
	s.expect(0, operator, []string{"finish", name, "--yes"})
	s.seen(name)
}

func (s *scene) eventually(try func() error) {
	s.Helper()
	last := errors.New("not tried")
	err := wait.PollUntilContextTimeout(s.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		s.Fatal(last)
	}
}

// running waits until a pod of an app in shop runs.
func (s *scene) running(app string) {
	s.Helper()
	s.eventually(func() error {
		pods := &corev1.PodList{}
		if err := s.List(s.Context(), pods, client.InNamespace("shop"), client.MatchingLabels{"app": app}); err != nil {
			return err
		}
		for i := range pods.Items {
			if pods.Items[i].Status.Phase == corev1.PodRunning {
				return nil
			}
		}
		return errors.New("no pod of " + app + " runs")
	})
}

// outcome is what a command has come to.
type outcome struct {
	code           int
	stdout, stderr string
}

// replumb runs a command as a user; as the administrator, if there is none.
func (s *scene) replumb(user string, args ...string) outcome {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 3*time.Minute)
	defer cancel()
	if args = append(args, "--kubeconfig", cmp.Or(s.access[user], s.Kubeconfig)); user != "" {
		args = append(args, "--as", user)
	}
	c := exec.CommandContext(ctx, os.Args[0], args...)
	// What the users agree to is kept with the file.
	c.Env = append(os.Environ(), asMain+"=1", "XDG_CONFIG_HOME="+filepath.Dir(s.file))
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if ended := new(exec.ExitError); err != nil && !errors.As(err, &ended) {
		s.Fatal(err)
	}
	return outcome{c.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// expect runs a command and fails the test if it ends with another code, or does not say all of some texts.
func (s *scene) expect(code int, user string, args []string, texts ...string) {
	s.Helper()
	o := s.replumb(user, args...)
	said := o.stdout + o.stderr
	if o.code != code {
		s.Fatalf("%s: exit code %d, want %d:\n%s", strings.Join(args, " "), o.code, code, said)
	}
	for _, text := range texts {
		if !strings.Contains(said, text) {
			s.Errorf("%s: %q is missing in:\n%s", strings.Join(args, " "), text, said)
		}
	}
}

// seen is what a viewer looks at of a migration that is recorded.
func (s *scene) seen(name string) {
	s.Helper()
	s.expect(0, viewer, []string{"status"})
	s.expect(0, viewer, []string{"status", name, "-o", "json"})
	s.expect(0, viewer, []string{"report", name, "-o", "json"})
}
