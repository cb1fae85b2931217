//go:build apiserver && long

package backup

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/chunklog"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// migrated is a cluster with a Migration of the name shop and nothing backed up.
func migrated(t *testing.T) (*apitest.Server, *v1alpha1.Migration) {
	t.Helper()
	s := lazy.Get(t)
	ctx := t.Context()
	if err := s.InstallCRD(ctx); err != nil {
		t.Fatal(err)
	}
	engineWait(t, func(ctx context.Context) error {
		if ok, err := s.CRDCurrent(ctx); err != nil || !ok {
			return engine.NotYet("no CRD: %v", err)
		}
		return nil
	})
	s.Clean(t)
	s.Namespace(t, "shop")
	s.Namespace(t, v1alpha1.SystemNamespace)
	if err := Remove(ctx, s, "shop"); err != nil {
		t.Fatal(err)
	}
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}},
	}
	engineWait(t, func(ctx context.Context) error { return s.Create(ctx, m) })
	return s, m
}

// engineWait runs f as a step: until it succeeds.
func engineWait(t *testing.T, f func(context.Context) error) {
	t.Helper()
	plan := &engine.Plan{Phases: []engine.Phase{{Name: "p", Groups: []engine.Group{{Parallel: 1, Steps: []engine.Step{untilNil(f)}}}}}}
	if err := (&engine.Runner{Sink: func(engine.Event) {}}).Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
}

type untilNil func(context.Context) error

func (untilNil) ID() string { return "wait" }

func (untilNil) Title() string { return "Wait" }

func (untilNil) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (f untilNil) Do(ctx context.Context) error { return f(ctx) }

func (untilNil) Verify(context.Context) error { return nil }

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{"note": "by hand"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "app", UID: "5ad5"}},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}},
		},
	}
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: map[string][]byte{"password": []byte("hunter2-" + name)},
	}
}

func created[T client.Object](t *testing.T, c client.Client, objects ...T) []client.Object {
	t.Helper()
	var out []client.Object
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Delete(context.Background(), o) })
		out = append(out, o)
	}
	return out
}

func configMaps(t *testing.T, c client.Client) []corev1.ConfigMap {
	t.Helper()
	list := &corev1.ConfigMapList{}
	if err := c.List(t.Context(), list, selected("shop")...); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestFirstVersionWins(t *testing.T) {
	s, m := migrated(t)
	objects := created(t, s, service("cart"), service("pay"))
	original := objects[0].(*corev1.Service).DeepCopy()
	if err := Store(t.Context(), s, m, objects[:1]); err != nil {
		t.Fatal(err)
	}
	changed := objects[0].(*corev1.Service)
	changed.Spec.Selector["version"] = "2"
	if err := s.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Store(t.Context(), s, m, objects); err != nil {
			t.Fatal(err)
		}
	}
	have, err := Stored(t.Context(), s, "shop")
	if err != nil || len(have) != 2 {
		t.Fatalf("stored: %v, %v", have, err)
	}
	all, err := Read(t.Context(), s, "shop")
	if err != nil || len(all) != 2 {
		t.Fatalf("read %d objects, %v", len(all), err)
	}
	got := &corev1.Service{}
	body, _ := json.Marshal(all[0].Object)
	if err := json.Unmarshal(body, got); err != nil {
		t.Fatal(err)
	}
	original.ManagedFields, got.TypeMeta, original.TypeMeta = nil, metav1.TypeMeta{}, metav1.TypeMeta{}
	if want, have := mustJSON(t, original), mustJSON(t, got); want != have {
		t.Errorf("the backup is\n%s\nand was\n%s", have, want)
	}
	for _, cm := range configMaps(t, s) {
		if owner := cm.OwnerReferences; len(owner) != 1 || owner[0].UID != m.UID || !*cm.Immutable {
			t.Errorf("%s: owner %v", cm.Name, owner)
		}
	}
	if other, err := Stored(t.Context(), s, "another"); err != nil || len(other) != 0 {
		t.Errorf("another migration has %v, %v", other, err)
	}
}

func mustJSON(t *testing.T, o any) string {
	t.Helper()
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestSecretsStaySecrets(t *testing.T) {
	s, m := migrated(t)
	objects := slices.Concat(created(t, s, service("cart")), created(t, s, secret("db"), secret("cache")))
	if err := Store(t.Context(), s, m, objects); err != nil {
		t.Fatal(err)
	}
	maps := configMaps(t, s)
	if len(maps) != 1 || strings.Contains(maps[0].Data[dataIndex], "Secret") {
		t.Errorf("%d ConfigMaps, the first holds %s", len(maps), maps[0].Data[dataIndex])
	}
	for _, cm := range maps {
		piece := pieceOf("ConfigMap", &cm, cm.BinaryData[dataObjects])
		if err := piece.each(func(o *unstructured.Unstructured) {
			if o.GetKind() == "Secret" {
				t.Errorf("%s is in a ConfigMap", keyOf(o))
			}
		}); err != nil {
			t.Error(err)
		}
	}
	secrets := &corev1.SecretList{}
	if err := s.List(t.Context(), secrets, selected("shop")...); err != nil || len(secrets.Items) != 1 {
		t.Fatalf("%d Secrets, %v", len(secrets.Items), err)
	}
	if secrets.Items[0].Type != corev1.SecretTypeOpaque {
		t.Errorf("the Secret has type %s", secrets.Items[0].Type)
	}
	if have, err := Stored(t.Context(), s, "shop"); err != nil || len(have) != 3 {
		t.Errorf("stored: %v, %v", have, err)
	}
	if err := Remove(t.Context(), s, "shop"); err != nil {
		t.Fatal(err)
	}
	if have, err := Stored(t.Context(), s, "shop"); err != nil || len(have) != 0 {
		t.Errorf("stored after the removal: %v, %v", have, err)
	}
}

// many are Services as a large cluster has them, with content that does not compress to nothing.
func many(n int) []client.Object {
	var out []client.Object
	for i := range n {
		svc := service(fmt.Sprintf("svc-%d", i))
		noise := make([]byte, 300)
		_, _ = rand.Read(noise)
		svc.Annotations["noise"] = fmt.Sprintf("%x", noise)
		svc.UID = types.UID(fmt.Sprintf("%032x", i))
		out = append(out, svc)
	}
	return out
}

func TestManyObjectsNeedFewChunks(t *testing.T) {
	s, m := migrated(t)
	objects := many(3000)
	if err := Store(t.Context(), s, m, objects); err != nil {
		t.Fatal(err)
	}
	maps := configMaps(t, s)
	if len(maps) < 2 || len(maps) > 5 {
		t.Errorf("%d chunks", len(maps))
	}
	for _, cm := range maps {
		if size := len(cm.BinaryData[dataObjects]) + len(cm.Data[dataIndex]); size > chunklog.Size {
			t.Errorf("%s has %d bytes", cm.Name, size)
		}
	}
	all, err := Read(t.Context(), s, "shop")
	if err != nil || len(all) != len(objects) {
		t.Fatalf("read %d objects, %v", len(all), err)
	}
	for i := range all {
		if all[i].GetName() != objects[i].GetName() {
			t.Fatalf("object %d is %s and should be %s", i, all[i].GetName(), objects[i].GetName())
		}
	}
}

func TestStep(t *testing.T) {
	s, m := migrated(t)
	objects := slices.Concat(created(t, s, service("cart")), created(t, s, secret("db")))
	step := NewStep(s, &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}, "secure/backup", "Back up", objects)
	if state, err := step.State(t.Context()); state != engine.Pending || err != nil {
		t.Errorf("before: %v, %v", state, err)
	}
	if err := step.Verify(t.Context()); !engine.Retryable(err) {
		t.Errorf("verified before: %v", err)
	}
	changes, err := step.Preview()
	if err != nil || len(changes) != 3 || changes[2].Object != "Migration shop" ||
		changes[0].Object != "ConfigMap replumb-system/backup-shop-*" ||
		mustJSON(t, changes[1].Body) != `{"objects":["Secret shop/db"]}` ||
		strings.Contains(mustJSON(t, changes), "hunter2") {
		t.Errorf("preview: %v, %v", changes, err)
	}
	engineWait(t, step.Do)
	if err := step.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if state, err := step.State(t.Context()); state != engine.Done || err != nil {
		t.Errorf("after: %v, %v", state, err)
	}
}

func kubectl(t *testing.T, s *apitest.Server, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestExportIsWhatKubectlTakes(t *testing.T) {
	s, m := migrated(t)
	objects := slices.Concat(
		created(t, s, service("cart")), created(t, s, secret("db")),
		created(t, s, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.30.0.0/16"}},
		}),
	)
	was := objects[0].(*corev1.Service).DeepCopy()
	if err := Store(t.Context(), s, m, objects); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects[:2] {
		if err := s.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "new", "backup")
	files, err := Export(t.Context(), s, "shop", dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"secret-shop-db.yaml", "service-shop-cart.yaml", "servicecidr-more.yaml"}
	for i := range want {
		want[i] = filepath.Join(dir, want[i])
	}
	if !slices.Equal(files, want) {
		t.Fatalf("files: %v", files)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o700, files[0]: 0o600, files[1]: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	body, _ := os.ReadFile(files[1])
	exported := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(body, &exported.Object); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"uid:", "resourceVersion:", "status:", "managedFields:", "creationTimestamp:", "ownerReferences:"} {
		if bytes.Contains(body, []byte(gone)) {
			t.Errorf("the export has %s\n%s", gone, body)
		}
	}
	kubectl(t, s, "apply", "-f", dir)
	back := &corev1.Service{}
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(was), back); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Delete(context.Background(), back) })
	if want, got := mustJSON(t, was.Spec), mustJSON(t, back.Spec); want != got {
		t.Errorf("restored as\n%s\nand was\n%s", got, want)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	_, err = Export(t.Context(), s, "shop", dir)
	var exists *ExistsError
	if !errors.As(err, &exists) || exists.Path != files[1] {
		t.Errorf("exported twice: %v", err)
	}
	if _, err := os.Stat(files[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("wrote %s before it refused: %v", files[0], err)
	}
	_, err = Export(t.Context(), s, "another", filepath.Join(dir, "another"))
	var none *NoneError
	if !errors.As(err, &none) {
		t.Errorf("nothing to export: %v", err)
	}
}

func TestRecreatedIsStoredToo(t *testing.T) {
	s, m := migrated(t)
	first := created(t, s, service("cart"))
	if err := Store(t.Context(), s, m, first); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), first[0]); err != nil {
		t.Fatal(err)
	}
	again := service("cart")
	again.Annotations["note"] = "second"
	if err := Store(t.Context(), s, m, created(t, s, again)); err != nil {
		t.Fatal(err)
	}
	files, err := Export(t.Context(), s, "shop", t.TempDir())
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	if body, err := os.ReadFile(files[0]); err != nil || !bytes.Contains(body, []byte("note: second")) {
		t.Errorf("exported\n%s, %v", body, err)
	}
}
