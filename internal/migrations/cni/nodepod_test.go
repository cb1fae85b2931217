package cni

import (
	"cmp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/pull"
)

// TestNoneIsPrivileged: agents have no more rights on a node than they need. Those that look can write nothing there, and one that cleans no more
// than the directories of the network.
func TestNoneIsPrivileged(t *testing.T) {
	for verb, tt := range map[string]struct {
		may    []corev1.Capability
		mounts []string
	}{
		verbTraffic: {[]corev1.Capability{"NET_ADMIN"}, nil},
		verbResidue: {[]corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT"}, []string{"/host (read-only)"}},
		verbClean: {[]corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT", "DAC_OVERRIDE"}, []string{
			"/host (read-only)", "/host/etc/cni/net.d", "/host/var/lib/cni", "/host/run/calico", "/host/var/lib/calico", "/host/run/xtables.lock",
		}},
		verbDetectSource:   {nil, []string{"/host (read-only)"}},
		verbCilium:   {nil, []string{"/host/run/cilium (read-only)"}},
		verbServices: {[]corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT"}, []string{"/host (read-only)"}},
	} {
		p := (&nodePod{verb: verb, node: "a", args: []string{"calico"}}).pod()
		c := p.Spec.Containers[0]
		sc := c.SecurityContext
		if sc.Privileged != nil || *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem || sc.SeccompProfile == nil ||
			!slices.Equal(sc.Capabilities.Add, tt.may) || !slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %+v", verb, sc)
		}
		var mounts []string
		for i, m := range c.VolumeMounts {
			text := m.MountPath
			if m.ReadOnly {
				text += " (read-only)"
			}
			if host := p.Spec.Volumes[i]; host.Name != m.Name || host.HostPath.Path != cmp.Or(m.MountPath[len("/host"):], "/") {
				t.Errorf("%s: %s is %+v", verb, text, host)
			}
			mounts = append(mounts, text)
		}
		if !slices.Equal(mounts, tt.mounts) {
			t.Errorf("%s mounts %q, want %q", verb, mounts, tt.mounts)
		}
	}
}

// TestPullSecrets: every pod that a migration runs has those of the canary, and with none they are as ever.
func TestPullSecrets(t *testing.T) {
	for _, tt := range []struct{ secrets, want []string }{
		{nil, nil},
		{[]string{"registry", "mirror"}, []string{"registry", "mirror"}},
	} {
		p := &Planner{Inventory: &Inventory{Spec: Spec{Name: "m", Canary: v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryRun, ImagePullSecrets: tt.secrets}}}}
		p.Deps.Image = pull.Image{Name: "i"}
		for _, verb := range []string{verbTraffic, verbResidue, verbClean} {
			a := p.onNode(verb, "a", "", "", "calico").nodePod
			pod := a.pod()
			var got []string
			for _, s := range pod.Spec.ImagePullSecrets {
				got = append(got, s.Name)
			}
			if !slices.Equal(got, tt.want) || pod.Spec.Containers[0].Image != "i" {
				t.Errorf("%v: pod that is for %s has %v", tt.secrets, verb, got)
			}
			pod.Spec.ImagePullSecrets, a.image.Secrets = nil, nil
			if !equality.Semantic.DeepEqual(pod, a.pod()) {
				t.Errorf("%v: pod that is for %s differs in more: %+v", tt.secrets, verb, pod)
			}
		}
		canaries := p.matrix("matrix", "", false)[0].Steps[0].(*matrixStep).pods()
		if canaries.Image.Name != "i" || !slices.Equal(canaries.Image.Secrets, tt.want) {
			t.Errorf("%v: canaries have %+v", tt.secrets, canaries.Image)
		}
	}
}
