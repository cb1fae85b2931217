// Package nodepod runs sub-commands of replumb node in pods that end.
package nodepod

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// Pod is one of replumb's on a node, whose verb decides what it may do there.
type Pod struct {
	taskpod.Task
	Image pull.Image
	args  []string
}

// Start makes the pod, in the place of one of an earlier run.
func (a *Pod) Start(ctx context.Context, args ...string) error {
	return a.Task.Start(ctx, a.Object(args...))
}

// Outcome is what it has found, once it has ended.
func (a *Pod) Outcome(ctx context.Context) (*nodecleanup.TracesReport, error) {
	report, err := a.Report(ctx)
	if err != nil {
		return nil, err
	}
	return nodecleanup.Parse(report)
}

// The sub-commands of replumb node that these pods run.
const (
	VerbTraffic = "traffic"
	VerbResidue = "residue"
	VerbClean   = "clean"
	// Mode InPlace looks whether a node can have both networks, and which one it has, writes its
	// CNI configuration, and keeps the source of packets between both networks for a while.
	VerbCheckInPlace   = "standing"
	VerbDetectSource   = "origin"
	VerbActivate       = "prefer"
	VerbDeactivate     = "unprefer"
	VerbAdopt          = "adopt"
	VerbPreserveSource = "cross"
	VerbForgetSource   = "uncross"
	// The replacement of kube-proxy asks Cilium's agent, and looks who answers for Services.
	VerbCilium   = "cilium"
	VerbServices = "services"
	// A change of kube-proxy's mode keeps a copy of its rules by the node's own programs, and
	// compares.
	VerbCopyRules    = "copy-rules"
	VerbCompareRules = "compare-rules"
	// VerbIPVS is what leaves its mode ipvs, by the first argument: leave, quiesce or remove.
	VerbIPVS = "ipvs"
)

const confDir = "/etc/cni/net.d"

// Object is on the network of the node. Its verb decides what it may do there.
func (a *Pod) Object(args ...string) *corev1.Pod {
	c := taskpod.Container(a.Image, slices.Concat([]string{a.Verb}, a.args, args), a.security())
	var volumes []corev1.Volume
	if a.Verb != VerbTraffic && a.Verb != VerbForgetSource {
		volumes, c.VolumeMounts = a.host()
	}
	spec := taskpod.Spec(a.Image, c)
	spec.Volumes = volumes
	return a.Task.Object(spec)
}

// host is the node's own root, read-only with all that is mounted in it, where kubelets can do
// that. A verb that writes gets the directories that it writes beside it.
func (a *Pod) host() (volumes []corev1.Volume, mounts []corev1.VolumeMount) {
	add := func(name, path string, kind corev1.HostPathType) {
		v, m := taskpod.Mount(name, path, kind)
		volumes, mounts = append(volumes, v), append(mounts, m)
	}
	if a.Verb == VerbCilium { // its socket is there, and nothing else is asked
		add("cilium", "/run/cilium", corev1.HostPathDirectory)
		mounts[0].ReadOnly = true
		return volumes, mounts
	}
	add("host", "/", corev1.HostPathUnset)
	mounts[0].ReadOnly = true
	switch a.Verb {
	case VerbActivate, VerbDeactivate, VerbAdopt:
		add("conf", confDir, corev1.HostPathDirectoryOrCreate)
		return volumes, mounts
	case VerbCopyRules, VerbCompareRules, VerbIPVS:
		add("lock", "/run/xtables.lock", corev1.HostPathFileOrCreate)
		return volumes, mounts
	case VerbClean:
	default:
		mounts[0].RecursiveReadOnly = ptr.To(corev1.RecursiveReadOnlyIfPossible)
		return volumes, mounts
	}
	n, _ := nodecleanup.Find(a.args[0])
	for i, dir := range n.Writable() {
		add(fmt.Sprintf("dir-%d", i), dir, corev1.HostPathDirectoryOrCreate)
	}
	add("lock", "/run/xtables.lock", corev1.HostPathFileOrCreate)
	return volumes, mounts
}

// security is what the kernel asks for and no more: NET_ADMIN for connections, interfaces, rules
// and sets, NET_RAW and SYS_CHROOT to run a node's own iptables, DAC_OVERRIDE for files of any
// owner.
func (a *Pod) security() *corev1.SecurityContext {
	var all *corev1.SecurityContext
	switch a.Verb {
	case VerbTraffic, VerbForgetSource:
		return taskpod.RootWith("NET_ADMIN")
	case VerbCilium, VerbDetectSource: // a socket or files of root's, and nothing is changed
		all = taskpod.RootWith()
	case VerbActivate, VerbDeactivate, VerbAdopt:
		all = taskpod.RootWith("DAC_OVERRIDE")
	case VerbClean:
		all = taskpod.RootWith("NET_ADMIN", "NET_RAW", "SYS_CHROOT", "DAC_OVERRIDE")
	default:
		all = taskpod.RootWith("NET_ADMIN", "NET_RAW", "SYS_CHROOT")
	}
	// SELinux lets containers of this type alone read files of the node. Nodes without it pass it
	// over.
	all.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
	return all
}

// Step runs a Pod. The traces of an earlier one cannot be seen from outside, so it runs in
// every run.
type Step struct {
	Pod
	id, title string
	Limit     time.Duration
	// Evaluate says what the report means; nil takes any.
	Evaluate func(*nodecleanup.TracesReport) error
	// Further is what its preview shows beside the pod.
	Further []engine.Change
}

var _ engine.Abandoner = (*Step)(nil)

// New runs a sub-command of replumb node; prefix begins the step's ID.
func New(c client.Client, migration string, image pull.Image, verb, node, prefix, title string, args ...string) *Step {
	return &Step{
		Pod: Pod{Task: taskpod.Task{Client: c, Migration: migration, Verb: verb, Node: node}, Image: image, args: args},
		id:  prefix + "/" + node, title: title, Limit: taskpod.Limit,
	}
}

func (s *Step) ID() string                                { return s.id }
func (s *Step) Title() string                             { return s.title }
func (s *Step) Deadline() time.Duration                   { return s.Limit }
func (*Step) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (s *Step) Do(ctx context.Context) error              { return s.Start(ctx) }
func (s *Step) Abandon(ctx context.Context) error         { return s.End(ctx) }

func (s *Step) Preview() ([]engine.Change, error) {
	return append([]engine.Change{
		{Verb: "run", Object: "Pod on Node " + s.Node, Body: map[string]any{"args": s.Object().Spec.Containers[0].Args}},
	}, s.Further...), nil
}

func (s *Step) Verify(ctx context.Context) error {
	r, err := s.Outcome(ctx)
	if err != nil {
		return err
	}
	if s.Evaluate != nil {
		if err := s.Evaluate(r); err != nil {
			return err
		}
	}
	return s.End(ctx)
}

// ReadOnly writes nothing on its node, and ends at once when a run does.
type ReadOnly struct{ *Step }

func (ReadOnly) Waits() {}
