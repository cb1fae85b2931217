package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	pullSecret    = "registry"
	releasedImage = "mirror/replumb"
)

// TestReleased installs what make release-snapshot has made, as a team with a registry of its own does: the image for all processors is pushed
// to one that asks for credentials, and run by its digest. It moves Services, and back, by the chart, and then by the command of an archive. No
// request is lost. The control deletes and recreates a Service under the same traffic.
func TestReleased(t *testing.T) {
	root := checkout(t)
	program := unpackRelease(t, filepath.Join(root, "dist"))
	topology := named("e2e-released")
	topology.Edge, topology.Registry = true, "registry.lab.example"
	l := bringUp(t, topology)
	forgetNamesSoon(t, l)
	digest, err := l.Addons().PushLayout(t.Context(), filepath.Join(root, "build", "replumb-image"), releasedImage+":released")
	must(t, err)
	o := newOperated(t, l, gitOpsServices)
	image := l.Registry().Host + "/" + releasedImage
	t.Run("chart", func(t *testing.T) {
		charts, err := filepath.Glob(filepath.Join(root, "build", "release", "replumb-*.tgz"))
		if err != nil || len(charts) != 1 {
			t.Fatalf("%d charts, %v", len(charts), err)
		}
		o := o.as(t)
		o.mayPull()
		o.moveWithHelm(charts[0], "image.repository="+image, "image.digest="+digest, "imagePullSecrets[0].name="+pullSecret)
	})
	o.s.steady(t)
	t.Run("archive", func(t *testing.T) { o.as(t).moveWithArchive(program, image+"@"+digest) })
	requireNaiveLoses(t, l)
}

// unpackRelease is the command of the archive for this machine, whose checksum is as the release says.
func unpackRelease(t *testing.T, dist string) (program string) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(dist, "replumb_*_linux_"+runtime.GOARCH+".tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("there are %d archives, %v\nhint: make release-snapshot makes one", len(archives), err)
	}
	content, err := os.ReadFile(archives[0])
	must(t, err)
	sums, err := os.ReadFile(filepath.Join(dist, "checksums.txt"))
	must(t, err)
	sum, want := sha256.Sum256(content), ""
	for lines := bufio.NewScanner(bytes.NewReader(sums)); lines.Scan(); {
		if of, name, _ := strings.Cut(lines.Text(), "  "); name == filepath.Base(archives[0]) {
			want = of
		}
	}
	if hex.EncodeToString(sum[:]) != want {
		t.Errorf("%s has checksum %x, and checksums.txt says %q", archives[0], sum, want)
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", archives[0], "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return filepath.Join(dir, "replumb")
}

func (o *inCluster) moveWithArchive(program, image string) {
	o.Helper()
	o.mayPull()
	o.run(program, "install", "--image", image, "--pull-secret", pullSecret, "--apply")
	moved := o.s.during(o.T, "a move by a release", func() {
		o.apply(o.migration("released", newRange))
		o.kubectl("wait", "--for=condition=Ready", "migration/released", "--timeout="+operated)
	})
	moved.requireNothingLost(o.T, traffic.All)
	requireAllIn(o.T, o.l, newRange)
	o.requireReleasedAgents(image)
	back := o.s.during(o.T, "the way back by a release", func() { o.run(program, "rollback", "released", "--yes") })
	back.requireNothingLost(o.T, traffic.All)
	requireAllIn(o.T, o.l, oldRange)
	o.run(program, "uninstall", "--yes")
}

// requireReleasedAgents fails the test unless agents run the image of the operator.
func (o *inCluster) requireReleasedAgents(image string) {
	o.Helper()
	agents, err := o.l.Client().AppsV1().DaemonSets(v1alpha1.SystemNamespace).Get(o.Context(), "agent", metav1.GetOptions{})
	must(o, err)
	if got := agents.Spec.Template.Spec.Containers[0].Image; got != image || agents.Status.NumberReady == 0 {
		o.Errorf("%d agents run %s, want %s", agents.Status.NumberReady, got, image)
	}
}

// mayPull puts the credentials of the registry where pods of replumb find them.
func (o *inCluster) mayPull() {
	o.Helper()
	login, err := o.l.Registry().DockerConfig()
	must(o, err)
	must(o, workload.Ensure(o.Context(), o.l.Client(), workload.Namespace(v1alpha1.SystemNamespace)))
	_, err = o.l.Client().CoreV1().Secrets(v1alpha1.SystemNamespace).Create(o.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: pullSecret}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: login},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		o.Fatal(err)
	}
}

// run runs a command of replumb to its successful end.
func (o *inCluster) run(program string, args ...string) {
	o.Helper()
	cmd := exec.CommandContext(o.Context(), program, append(args, "--kubeconfig", o.l.Kubeconfig())...)
	if out, err := cmd.CombinedOutput(); err != nil {
		o.report()
		o.Fatalf("replumb %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
