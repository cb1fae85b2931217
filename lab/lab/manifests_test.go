package lab

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// kindsIn are the kinds of manifests in their order; what is a DaemonSet is returned too, read as strictly as an API server can.
func kindsIn(t *testing.T, manifests []byte) (kinds []string, daemons []appsv1.DaemonSet) {
	t.Helper()
	for doc := range bytes.SplitSeq(manifests, []byte("\n---\n")) {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &meta); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		kinds = append(kinds, meta.Kind)
		if meta.Kind == "DaemonSet" {
			var d appsv1.DaemonSet
			if err := yaml.UnmarshalStrict(doc, &d); err != nil {
				t.Fatalf("%v in\n%s", err, doc)
			}
			daemons = append(daemons, d)
		}
	}
	return kinds, daemons
}

func TestFlannelManifests(t *testing.T) {
	manifests, err := flannelManifests(netip.MustParsePrefix("10.244.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	kinds, daemons := kindsIn(t, manifests)
	want := []string{"Namespace", "ClusterRole", "ClusterRoleBinding", "ServiceAccount", "ConfigMap", "DaemonSet"}
	if !slices.Equal(kinds, want) {
		t.Errorf("there are %v, want %v", kinds, want)
	}
	requireNodesOwn(t, daemons)
	if !strings.Contains(string(manifests), `"Network": "10.244.0.0/16"`) {
		t.Errorf("the range is not in\n%s", manifests)
	}
}

func TestCalicoManifests(t *testing.T) {
	l := left()
	l.Binaries.calico = t.TempDir()
	definitions := filepath.Join(l.Binaries.calico, "crd")
	if err := os.Mkdir(definitions, 0o700); err != nil {
		t.Fatal(err)
	}
	pool := netip.MustParsePrefix("10.245.0.0/16")
	if _, err := CalicoManifests(l, pool); err == nil {
		t.Error("definitions are not missed")
	}
	for _, name := range []string{"a.yaml", "b.yaml"} {
		text := "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: " + name + "}\n"
		if err := os.WriteFile(filepath.Join(definitions, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	manifests, err := CalicoManifests(l, pool)
	if err != nil {
		t.Fatal(err)
	}
	kinds, daemons := kindsIn(t, manifests)
	want := []string{
		"CustomResourceDefinition", "CustomResourceDefinition", "ServiceAccount", "ServiceAccount", "ClusterRole", "ClusterRole",
		"ClusterRoleBinding", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "IPPool", "FelixConfiguration",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("there are %v, want %v", kinds, want)
	}
	requireNodesOwn(t, daemons)
	if !strings.Contains(string(manifests), "cidr: 10.245.0.0/16") {
		t.Error("the range is not in them")
	}
	invalid := (*InvalidError)(nil)
	if _, err := CalicoManifests(newLab(Default()), pool); !errors.As(err, &invalid) {
		t.Errorf("for a lab without the image: %v", err)
	}
	if _, err := CalicoManifests(l, netip.MustParsePrefix("10.245.0.1/16")); !errors.As(err, &invalid) {
		t.Errorf("for a range with host bits: %v", err)
	}
}

// requireNodesOwn fails the test unless there is one DaemonSet whose pods run on every node, be it ready or not, and pull nothing.
func requireNodesOwn(t *testing.T, daemons []appsv1.DaemonSet) {
	t.Helper()
	if len(daemons) != 1 {
		t.Fatalf("there are %d DaemonSets", len(daemons))
	}
	pod := daemons[0].Spec.Template.Spec
	if !pod.HostNetwork || pod.PriorityClassName != "system-node-critical" || pod.Tolerations[0].Operator != corev1.TolerationOpExists {
		t.Errorf("not every node runs %s", daemons[0].Name)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.ImagePullPolicy != corev1.PullNever {
			t.Errorf("%s of %s is pulled", c.Name, daemons[0].Name)
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s of %s mounts %s, which there is not", c.Name, daemons[0].Name, m.Name)
			}
		}
	}
}
