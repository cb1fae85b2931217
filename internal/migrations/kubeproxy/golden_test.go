package kubeproxy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// facts are what objects do not tell.
type facts struct {
	Denied []string                 `json:"denied"`
	Status v1alpha1.KubeProxyStatus `json:"status"`
	Others []string                 `json:"others"`
	// Absent are Secrets that are not there.
	Absent []string `json:"absent"`
}

// TestGolden reads a cluster and a Migration from testdata/golden/*.txtar and compares what the
// checks find and the plans that are made. No cluster is needed.
func TestGolden(t *testing.T) { golden.Run(t, "testdata/golden/*.txtar", sections) }

// TestEveryCheckFiresAndPasses: each has a golden file for both.
func TestEveryCheckFiresAndPasses(t *testing.T) {
	migrationtest.EveryCheck(t, Checks(), "testdata/golden/*.txtar")
}

func sections(t *testing.T, in map[string][]byte) golden.Sections {
	t.Helper()
	p, input := planned(t, in)
	return golden.Sections{
		"findings": func() string { return migrationtest.Found(findings.Run(Checks(), input)) },
		"plan":     func() string { return migrationtest.Plan(t, p.Apply()) },
		"finish":   func() string { return migrationtest.Plan(t, p.Finish()) },
		"rollback": func() string { return migrationtest.Plan(t, p.Rollback()) },
		"left":     func() string { return p.Left() + "\n" },
	}
}

func planned(t *testing.T, in map[string][]byte) (*Planner, Input) {
	t.Helper()
	m, err := spec.Parse(in["migration.yaml"])
	must(t, err)
	job, err := NewJob(migration.Deps{}, m)
	must(t, err)
	var f facts
	must(t, yaml.UnmarshalStrict(in["facts.yaml"], &f))
	s := &Inventory{Spec: job.Spec, Status: f.Status}
	read(t, s, in["cluster.yaml"])
	nowhere, err := cluster.Connect(&rest.Config{Host: "http://192.0.2.1"})
	must(t, err)
	deps := migration.Deps{Cluster: nowhere, Image: pull.Image{Name: "replumb"}}
	p := &Planner{Base: migration.Base{Tools: deps, Migration: job.Migration}, Inventory: s, Image: pull.Image{Name: "replumb", Secrets: job.Spec.Common.ImagePullSecrets}}
	input := Input{Inventory: s, Image: "replumb", Agents: job.Spec.Common.Image, Access: migrationtest.Access(t, Roles(), f.Denied...)}
	for _, name := range f.Others {
		other := v1alpha1.Migration{Status: v1alpha1.MigrationStatus{Phase: v1alpha1.PhaseApplying}}
		other.Name = name
		input.Others = append(input.Others, other)
	}
	input.AbsentSecrets, err = p.Image.Needed(t.Context(), migrationtest.Lacking(f.Absent), "")
	must(t, err)
	return p, input
}

// read sorts objects into what a look at the cluster finds.
func read(t *testing.T, s *Inventory, text []byte) {
	t.Helper()
	var objects []client.Object
	var pods []corev1.Pod
	decode := clientscheme.Codecs.UniversalDeserializer()
	for doc := range strings.SplitSeq(string(text), "---\n") {
		o, _, err := decode.Decode([]byte(doc), nil, nil)
		must(t, err)
		switch o := o.(type) {
		case *corev1.Node:
			s.Nodes = append(s.Nodes, *o)
		case *corev1.Service:
			s.Services = append(s.Services, *o)
		case *appsv1.DaemonSet:
			for _, ds := range inventory.ProxySets([]appsv1.DaemonSet{*o}) {
				s.add(ds)
			}
		case *corev1.Pod:
			pods = append(pods, *o)
		case *corev1.ConfigMap:
			objects = append(objects, o)
		default:
			t.Fatalf("cluster.yaml has a %T", o)
		}
	}
	s.addStatic(pods)
	var all []runtime.Object
	for _, o := range objects {
		all = append(all, o)
	}
	must(t, s.loadMode(t.Context(), fake.NewClientBuilder().WithRuntimeObjects(all...).Build()))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSpecRefuses(t *testing.T) {
	for _, tt := range []struct{ name, text, field, says string }{
		{"no mode", "{}", "spec.kubeProxy.mode", "is missing"},
		{"ipvs", "{mode: ipvs}", "spec.kubeProxy.mode", `"ipvs" is not known`},
		{"the same", "{mode: iptables, program: {from: iptables}}", "spec.kubeProxy.program.from", "is what spec.kubeProxy.mode has"},
		{"from", "{mode: iptables, program: {from: userspace}}", "spec.kubeProxy.program.from", `"userspace" is not known`},
		{"parallel", "{mode: nftables, nodes: {parallel: -1}}", "spec.kubeProxy.nodes.parallel", "-1 is not within 1 and 100"},
		{"first", `{mode: nftables, nodes: {first: [""]}}`, "spec.kubeProxy.nodes.first[0]", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := spec.Parse([]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {kubeProxy: " + tt.text + "}\n"))
			if err == nil {
				_, err = NewJob(migration.Deps{}, m)
			}
			var wrong *spec.Error
			if !errors.As(err, &wrong) || wrong.Field != tt.field || !strings.Contains(wrong.Error(), tt.says) || wrong.Hint == "" {
				t.Errorf("got %v (%+v), want %s: %s", err, wrong, tt.field, tt.says)
			}
		})
	}
}

func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../../../examples/kube-proxy/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		must(t, err)
		m, err := spec.Parse(body)
		must(t, err)
		if _, err := NewJob(migration.Deps{}, m); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestModeInConfig: another mode is one line of the file, and all others stay as they are.
func TestModeInConfig(t *testing.T) {
	const kubeadm = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n# ours\nmode: \"\"\nnodePortAddresses: null\n"
	for _, tt := range []struct{ name, text, mode, want string }{
		{"kubeadm", kubeadm, "nftables", strings.Replace(kubeadm, `mode: ""`, "mode: nftables", 1)},
		{"back", strings.Replace(kubeadm, `""`, "nftables", 1), "", kubeadm},
		{"without a line", "kind: KubeProxyConfiguration", "nftables", "kind: KubeProxyConfiguration\nmode: nftables\n"},
		{"a mode further in", "detectLocal:\n  mode: x\nmode: iptables", "nftables", "detectLocal:\n  mode: x\nmode: nftables"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := withMode(tt.text, tt.mode); err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
	if got, err := withMode(`{"mode": "iptables"}`, "nftables"); err == nil {
		t.Errorf("a file of JSON was changed to %q", got)
	}
}

// TestPlace: the mode is in the ConfigMap that has the file, under its key, or in flags.
func TestPlace(t *testing.T) {
	volume := func(name, config string, items ...corev1.KeyToPath) corev1.Volume {
		source := corev1.ConfigMapVolumeSource{Items: items}
		source.Name = config
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &source}}
	}
	for _, tt := range []struct {
		name    string
		command []string
		mounts  []corev1.VolumeMount
		volumes []corev1.Volume
		want    place
		fails   bool
	}{
		{
			name: "kubeadm", command: []string{"kube-proxy", "--config=/var/lib/kube-proxy/config.conf"},
			mounts:  []corev1.VolumeMount{{Name: "kube-proxy", MountPath: "/var/lib/kube-proxy"}},
			volumes: []corev1.Volume{volume("kube-proxy", "kube-proxy")}, want: place{"kube-proxy", "config.conf"},
		},
		{
			name: "another key", command: []string{"kube-proxy", "--config", "/etc/kp/c.yaml"},
			mounts:  []corev1.VolumeMount{{Name: "v", MountPath: "/etc/kp"}},
			volumes: []corev1.Volume{volume("v", "proxies", corev1.KeyToPath{Key: "linux", Path: "c.yaml"})}, want: place{"proxies", "linux"},
		},
		{name: "flags", command: []string{"kube-proxy", "--proxy-mode=iptables"}},
		{name: "a file of the node", command: []string{"kube-proxy", "--config=/etc/kp.yaml"}, fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := &corev1.PodSpec{
				Containers: []corev1.Container{{Name: "kube-proxy", Command: tt.command, VolumeMounts: tt.mounts}}, Volumes: tt.volumes,
			}
			if got, err := placeOf(spec); got != tt.want || (err != nil) != tt.fails {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// TestSecond: a second DaemonSet differs from the own one in what has to differ, so that both run
// on one node.
func TestSecond(t *testing.T) {
	own := &appsv1.DaemonSet{}
	must(t, yaml.Unmarshal([]byte(`
metadata: {name: kube-proxy, namespace: kube-system, labels: {k8s-app: kube-proxy}}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}, annotations: {kept: "yes"}}
    spec:
      serviceAccountName: kube-proxy
      containers:
      - name: kube-proxy
        command: [kube-proxy, --config=/c/config.conf]
        ports: [{name: healthz, containerPort: 10256, hostPort: 10256}]
        livenessProbe: {httpGet: {port: healthz, path: /healthz}}
        volumeMounts: [{name: c, mountPath: /c}]
      volumes: [{name: c, configMap: {name: kube-proxy}}, {name: other, configMap: {name: others}}]
`), own))
	before := own.DeepCopy()
	got := second(own, nil, place{"kube-proxy", "config.conf"}, v1alpha1.KubeProxyNFTables, "m")
	spec := got.Spec.Template.Spec
	c := spec.Containers[0]
	switch {
	case !equality.Semantic.DeepEqual(own, before):
		t.Error("the own DaemonSet was changed")
	case got.Name != "kube-proxy-nftables" || got.Spec.Template.Labels["k8s-app"] != "" || got.Spec.Template.Annotations["kept"] != "yes":
		t.Errorf("its pods are %+v", got.Spec.Template.ObjectMeta)
	case len(c.Ports) > 0 || c.LivenessProbe.HTTPGet.Port.IntValue() != 10256:
		t.Errorf("ports %v, probe %v", c.Ports, c.LivenessProbe.HTTPGet.Port)
	case spec.Volumes[0].ConfigMap.Name != "kube-proxy-nftables" || spec.Volumes[1].ConfigMap.Name != "others" || spec.ServiceAccountName != "kube-proxy":
		t.Errorf("it has %+v", spec)
	case got.Labels[v1alpha1.LabelBreakGlass] == "" || got.Spec.Selector.MatchLabels[v1alpha1.LabelBreakGlass] != "":
		t.Errorf("labels %v, selector %v", got.Labels, got.Spec.Selector)
	}
}
