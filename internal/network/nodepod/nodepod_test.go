package nodepod

import (
	"cmp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/taskpod"
)

// TestNoneIsPrivileged: agents have no more rights on a node than they need. Those that look can
// write nothing there, and one that cleans no more than the directories of the network.
func TestNoneIsPrivileged(t *testing.T) {
	for verb, tt := range map[string]struct {
		may    []corev1.Capability
		mounts []string
	}{
		VerbTraffic: {[]corev1.Capability{"NET_ADMIN"}, nil},
		VerbResidue: {[]corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT"}, []string{"/host (read-only)"}},
		VerbClean: {[]corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT", "DAC_OVERRIDE"}, []string{
			"/host (read-only)", "/host/etc/cni/net.d", "/host/var/lib/cni", "/host/run/calico", "/host/var/lib/calico", "/host/run/xtables.lock",
		}},
		VerbCopyRules:    {[]corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT"}, []string{"/host (read-only)", "/host/run/xtables.lock"}},
		VerbCompareRules: {[]corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT"}, []string{"/host (read-only)", "/host/run/xtables.lock"}},
		VerbDetectSource: {nil, []string{"/host (read-only)"}},
		VerbCilium:       {nil, []string{"/host/run/cilium (read-only)"}},
		VerbServices:     {[]corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT"}, []string{"/host (read-only)"}},
	} {
		p := (&Pod{Task: taskpod.Task{Verb: verb, Node: "a"}, args: []string{"calico"}}).Object()
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
