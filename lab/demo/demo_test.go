package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/lab/workload"
)

type fakeCluster struct{ nodes []string }

func (fakeCluster) Kubeconfig() string                    { return "/lab/kubeconfig" }
func (fakeCluster) RESTConfig() *rest.Config              { return &rest.Config{Host: "127.0.0.1:1"} }
func (f fakeCluster) NodeNames() []string                 { return f.nodes }
func (fakeCluster) Load(context.Context, ...string) error { return nil }

func testDemo(t *testing.T) *demo {
	t.Helper()
	return &demo{
		Options: Options{
			Cluster: fakeCluster{[]string{"a", "b"}}, From: netip.MustParsePrefix("10.96.0.0/16"), FurtherServices: 1,
			Out: &bytes.Buffer{}, Progress: &bytes.Buffer{},
		}.withDefaults(),
		dir: t.TempDir(),
	}
}

func TestBadOptions(t *testing.T) {
	fine := Options{
		Cluster: fakeCluster{[]string{"a"}}, Replumb: "replumb", From: netip.MustParsePrefix("10.96.0.0/16"),
	}
	tests := []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Cluster = fakeCluster{} }, "worker nodes"},
		{func(o *Options) { o.Replumb = "" }, "replumb binary"},
		{func(o *Options) { o.From = netip.Prefix{} }, "present Service range"},
		{func(o *Options) { o.To = netip.MustParsePrefix("10.96.4.0/24") }, "overlap"},
	}
	for _, tt := range tests {
		options := fine
		tt.change(&options)
		if err := Run(t.Context(), options); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error = %v, want it to contain %q", err, tt.want)
		}
	}
}

func TestControlMovesWhenHalfOfTheShopHas(t *testing.T) {
	d := testDemo(t)
	present := workload.Echo{Namespace: controlNamespace, Name: controlService, PartOf: "control"}.Service()
	present.UID = "old"
	held := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "172.24.255.254"}}
	client := fake.NewClientset(present, held)
	d.client = client
	services := client.CoreV1().Services(shopNamespace)
	for i, echo := range workload.Shop(shopNamespace) {
		service := echo.Service()
		if i < 2 {
			service.Spec.ClusterIP = "172.24.0.1"
		}
		if _, err := services.Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Two of five have moved: not yet.
	early, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.awaitHalfMoved(early); err == nil {
		t.Fatal("half of five is not two")
	}
	third := workload.Shop(shopNamespace)[2].Service()
	third.Spec.ClusterIP = "172.24.0.3"
	if _, err := services.Update(t.Context(), third, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := d.moveControlMidway(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Services(controlNamespace).Get(t.Context(), controlService, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.UID == present.UID || got.Spec.ClusterIP != "172.24.255.253" || got.Spec.Type == corev1.ServiceTypeExternalName {
		t.Errorf("control = %+v", got.Spec)
	}
}

func TestLastAddress(t *testing.T) {
	for prefix, want := range map[string]string{"172.24.0.0/16": "172.24.255.254", "10.0.0.0/28": "10.0.0.14", "10.1.2.0/23": "10.1.3.254"} {
		if got := lastAddress(netip.MustParsePrefix(prefix)).String(); got != want {
			t.Errorf("last of %s = %s, want %s", prefix, got, want)
		}
	}
}

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "replumb")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReplumbIsRunAsAUserWould(t *testing.T) {
	d := testDemo(t)
	d.Replumb = script(t, `echo "$@"; echo moving >&2; [ "$1" = plan ]`)
	migration, err := d.writeMigration()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.replumb(t.Context(), "plan", "-f", migration); err != nil {
		t.Fatal(err)
	}
	out, progress := d.Out.(*bytes.Buffer).String(), d.Progress.(*bytes.Buffer).String()
	if want := "plan -f " + migration + " --kubeconfig /lab/kubeconfig\n"; out != want {
		t.Errorf("out = %q, want %q", out, want)
	}
	if !strings.Contains(progress, "$ replumb plan -f "+migration) || !strings.Contains(progress, "moving") {
		t.Errorf("progress = %q", progress)
	}
	if err := d.replumb(t.Context(), "finish", "demo"); err == nil || !strings.Contains(err.Error(), "replumb finish") {
		t.Errorf("error = %v", err)
	}
}

// TestPlanIsSummed: each phase is shown with how many steps it has, and the whole plan is a file.
func TestPlanIsSummed(t *testing.T) {
	d := testDemo(t)
	d.Replumb = script(t, "cat <<'EOF'\n"+`cluster: lab
RP1204 not told (warning)
secure: Record the migration
  Create the namespace
    create Namespace replumb-system
  Back up 3 objects
    create ConfigMap
move: Move Services
  Move shop/cart
EOF
`)
	if err := d.plan(t.Context(), "m.yaml"); err != nil {
		t.Fatal(err)
	}
	want := "secure: Record the migration (2 steps)\nmove: Move Services (1 step)\nevery step, and what it writes: " + filepath.Join(
		d.dir,
		"plan.txt",
	) + "\n"
	if out := d.Out.(*bytes.Buffer).String(); out != want {
		t.Errorf("out = %q, want %q", out, want)
	}
	if whole, err := os.ReadFile(filepath.Join(d.dir, "plan.txt")); err != nil || !strings.Contains(string(whole), "create ConfigMap") {
		t.Errorf("%s, %v", whole, err)
	}
}

// TestApplyShowsThePage: the page that status draws comes before what apply has to say in the end, and goes when apply fails.
func TestApplyShowsThePage(t *testing.T) {
	d := testDemo(t)
	d.Replumb = script(t, `case "$1" in status) echo "$@";; apply) echo moved; echo "$@" >&2;; esac`)
	if err := d.apply(t.Context(), "m.yaml"); err != nil {
		t.Fatal(err)
	}
	if out := d.Out.(*bytes.Buffer).String(); out != "status demo --watch --kubeconfig /lab/kubeconfig\nmoved\n" {
		t.Errorf("out = %q", out)
	}
	if progress := d.Progress.(*bytes.Buffer).String(); !strings.Contains(progress, "apply -f m.yaml --yes --quiet --kubeconfig") {
		t.Errorf("progress = %q", progress)
	}
	d.Replumb = script(t, `exit 1`)
	if err := d.apply(t.Context(), "m.yaml"); err == nil || !strings.Contains(err.Error(), "replumb apply") {
		t.Errorf("error = %v", err)
	}
}

func TestInterruptReachesReplumb(t *testing.T) {
	d := testDemo(t)
	d.Replumb = script(t, `trap 'exit 130' INT; echo started; while :; do :; done`)
	started, out := io.Pipe()
	d.Out = out
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.replumb(ctx, "apply") }()
	if _, err := started.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
}

func TestMigrationNamesTheRangeToEmpty(t *testing.T) {
	d := testDemo(t)
	path, err := d.writeMigration()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"from: [10.96.0.0/16]", "to: [172.24.0.0/16]"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q", text, want)
		}
	}
}
