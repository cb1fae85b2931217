package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// gitOpsServices are those of the shop that stand before no Deployment of their own.
const gitOpsServices = 5

// TestHelmAndFlux has Helm install replumb from its chart, and move and move back what a Migration says. Then Flux does the same from
// artifacts in a registry: one Kustomization installs replumb, and another one, which depends on it, has the Migration, and is Ready once that
// is. A later artifact finishes it. No request is lost. The control deletes and recreates a Service under the same traffic.
func TestHelmAndFlux(t *testing.T) {
	topology := named("e2e-gitops")
	topology.Edge, topology.Registry, topology.With = true, "registry.lab.example", []lab.Addon{lab.Flux}
	l := bringUp(t, topology)
	forgetNamesSoon(t, l)
	o := newOperated(t, l, gitOpsServices)
	t.Run("Helm", func(t *testing.T) {
		repo, tag, _ := strings.Cut(workload.ReplumbImage, ":")
		o.as(t).moveWithHelm(filepath.Join(checkout(t), "charts", "replumb"), "image.repository="+repo, "image.tag="+tag)
	})
	o.s.steady(t)
	t.Run("Flux", func(t *testing.T) { o.as(t).moveWithFlux() })
	requireNaiveLoses(t, l)
}

// as is the same cluster, seen by a subtest.
func (o *inCluster) as(t *testing.T) *inCluster {
	t.Helper()
	return &inCluster{T: t, l: o.l, s: o.s, callees: o.callees}
}

// moveWithHelm installs a chart with values, moves by it and back, and uninstalls it.
func (o *inCluster) moveWithHelm(chart string, values ...string) {
	o.Helper()
	o.helm("install", "replumb", chart, "--namespace", v1alpha1.SystemNamespace, "--create-namespace",
		"--set", strings.Join(values, ","), "--wait", "--timeout", "3m")
	o.helm("test", "replumb", "--namespace", v1alpha1.SystemNamespace, "--timeout", "2m")
	moved := o.s.during(o.T, "a move by Helm's operator", func() {
		o.apply(o.migration("helmed", newRange))
		o.kubectl("wait", "--for=condition=Ready", "migration/helmed", "--timeout="+operated)
	})
	moved.requireNothingLost(o.T, traffic.All)
	requireAllIn(o.T, o.l, newRange)
	back := o.s.during(o.T, "the way back, handed over by a command", func() {
		o.Log(replumb(o.T, o.l, "rollback", "helmed", "--yes"))
	})
	back.requireNothingLost(o.T, traffic.All)
	requireAllIn(o.T, o.l, oldRange)
	replumb(o.T, o.l, "uninstall", "--yes")
	o.helm("uninstall", "replumb", "--namespace", v1alpha1.SystemNamespace, "--ignore-not-found")
	o.kubectl("delete", "namespace", v1alpha1.SystemNamespace) // Helm leaves the one it has created
	requireNoTrace(o.T, o.l)
}

// helm runs Helm to its successful end.
func (o *inCluster) helm(args ...string) {
	o.Helper()
	cmd := exec.CommandContext(o.Context(), helmProgram(o.T), append(args, "--kubeconfig", o.l.Kubeconfig())...)
	cmd.Env = append(os.Environ(), "HOME="+o.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		o.report()
		o.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// checkout is the folder of the sources.
func checkout(t *testing.T) string {
	t.Helper()
	root, err := component.SourceRoot()
	must(t, err)
	return root
}

// helmProgram builds Helm's command, of the version that the tests of the chart have.
func helmProgram(t *testing.T) string {
	t.Helper()
	root := checkout(t)
	program := filepath.Join(root, "bin", "helm")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "helm.sh/helm/v3/cmd/helm")
	cmd.Dir, cmd.Env = filepath.Join(root, "hack", "tools"), append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build helm: %v\n%s", err, out)
	}
	return program
}

// The repository that Flux applies, as teams have it: what is installed, and what is to be done with it.
const (
	fluxArtifact = "platform/network"
	fluxInstall  = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../deploy/kustomize]
images: [{name: ghcr.io/replumb/replumb, newName: %s, newTag: %s}]
`
	fluxObjects = `apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {namespace: %[1]s, name: network}
spec:
  interval: 10s
  url: oci://%[2]s/%[3]s
  ref: {tag: main}
  layerSelector: {mediaType: application/vnd.cncf.flux.content.v1.tar+gzip, operation: extract}
  secretRef: {name: registry}
  certSecretRef: {name: registry-ca}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {namespace: %[1]s, name: replumb}
spec:
  interval: 10s
  retryInterval: 5s
  timeout: 3m
  prune: true
  wait: true
  path: ./install
  sourceRef: {kind: OCIRepository, name: network}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {namespace: %[1]s, name: moves}
spec:
  interval: 10s
  retryInterval: 5s
  timeout: %[4]s
  prune: false
  wait: true
  path: ./moves
  dependsOn: [{name: replumb}]
  sourceRef: {kind: OCIRepository, name: network}
`
)

func (o *inCluster) moveWithFlux() {
	o.Helper()
	move := o.migration("fluxed", newRange)
	o.commit(move)
	o.trustRegistry()
	moved := o.s.during(o.T, "a move by Flux", func() {
		o.apply(fmt.Sprintf(fluxObjects, lab.FluxNamespace, o.l.Registry().Host, fluxArtifact, operated))
		o.awaitFlux("fluxed", v1alpha1.PhaseMoved)
	})
	moved.requireNothingLost(o.T, traffic.All)
	requireAllIn(o.T, o.l, newRange)

	o.callByNameAlone()
	approved := strings.Replace(move, "metadata: {name: fluxed}", `metadata: {name: fluxed, annotations: {replumb.dev/approve: "`+o.finishWord("fluxed")+`"}}`, 1)
	ended := o.s.during(o.T, "finish by Flux", func() {
		o.commit(strings.Replace(approved, "desired: Applied", "desired: Finished", 1))
		o.awaitFlux("fluxed", v1alpha1.PhaseFinished)
	})
	ended.requireNothingLost(o.T, traffic.All)
}

// awaitFlux waits until a Migration has got to a phase, and until Flux says so of what it has applied.
func (o *inCluster) awaitFlux(name string, phase v1alpha1.Phase) {
	o.Helper()
	o.kubectl("wait", "--for=create", "customresourcedefinition/migrations.replumb.dev", "--timeout=5m")
	o.kubectl("wait", "--for=condition=Established", "customresourcedefinition/migrations.replumb.dev", "--timeout=1m")
	o.kubectl("wait", "--for=create", "migration/"+name, "--timeout=5m")
	o.kubectl("wait", "--for=jsonpath={.status.phase}="+string(phase), "migration/"+name, "--timeout="+operated)
	o.kubectl("wait", "--for=condition=Ready", "-n", lab.FluxNamespace, "kustomization/moves", "--timeout=2m")
}

// commit is what a merge to main leads to in the artifact that Flux reads.
func (o *inCluster) commit(move string) {
	o.Helper()
	repo, tag, _ := strings.Cut(workload.ReplumbImage, ":")
	files := fstest.MapFS{
		"install/kustomization.yaml": {Data: fmt.Appendf(nil, fluxInstall, repo, tag), Mode: 0o644},
		"moves/move.yaml":            {Data: []byte(move), Mode: 0o644},
	}
	root := os.DirFS(checkout(o.T))
	for _, dir := range []string{"deploy/kustomize", "deploy/crds"} {
		err := fs.WalkDir(root, dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := fs.ReadFile(root, path)
			files[path] = &fstest.MapFile{Data: data, Mode: 0o644}
			return err
		})
		must(o, err)
	}
	must(o, o.l.Addons().PushFiles(o.Context(), files, fluxArtifact+":main"))
}

// trustRegistry gives Flux the credentials of the registry, and who has signed its certificate.
func (o *inCluster) trustRegistry() {
	o.Helper()
	login, err := o.l.Registry().DockerConfig()
	must(o, err)
	for _, s := range []*corev1.Secret{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "registry"}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: login},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "registry-ca"}, Data: map[string][]byte{"ca.crt": o.l.Registry().CA}},
	} {
		if _, err := o.l.Client().CoreV1().Secrets(lab.FluxNamespace).Create(o.Context(), s, metav1.CreateOptions{}); err != nil {
			o.Fatal(err)
		}
	}
}
