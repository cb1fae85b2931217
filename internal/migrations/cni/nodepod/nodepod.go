// Package nodepod runs sub-commands of replumb node in pods that end.
package nodepod

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

const (
	// Label is on every pod that does something on a node; its value is what.
	Label = "replumb.dev/on-node"
	// Limit is how long its image may take to come, and it may work.
	Limit = 5 * time.Minute
	// HostRoot is where the root of the node is mounted.
	HostRoot = "/host"
	// ReportPath is where the kubelet reads a container's last words.
	ReportPath = "/dev/termination-log"
)

// Pod does one thing on a node, reports and ends. It has no access to the API.
type Pod struct {
	Client    client.Client
	Migration string
	Image     pull.Image
	// verb is what it is for, and part of its labels.
	verb, Node string
	args       []string
}

func (a *Pod) labels() client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: a.Migration, Label: a.verb}
}

// Start makes the pod. One of an earlier run is ended first: what it found may have changed since.
func (a *Pod) Start(ctx context.Context, args ...string) error {
	if err := a.End(ctx); err != nil {
		return err
	}
	if err := a.Client.Create(ctx, a.Object(args...), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("a pod on node %s: %w", a.Node, err)
	}
	return nil
}

func (a *Pod) Find(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := a.Client.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace), a.labels()); err != nil {
		return nil, fmt.Errorf("looking for the pod on node %s: %w", a.Node, err)
	}
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool {
		return p.Spec.NodeName != a.Node || !p.DeletionTimestamp.IsZero()
	}), nil
}

func (a *Pod) End(ctx context.Context) error {
	all, err := a.Find(ctx)
	for i := range all {
		if e := a.Client.Delete(ctx, &all[i], client.GracePeriodSeconds(1)); client.IgnoreNotFound(e) != nil {
			return fmt.Errorf("ending pod %s: %w", all[i].Name, e)
		}
	}
	return err
}

func (a *Pod) Outcome(ctx context.Context) (*nodecleanup.TracesReport, error) {
	all, err := a.Find(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, engine.NotYet("node %s has no pod of replumb", a.Node)
	}
	p := &all[len(all)-1]
	message := p.Status.Message
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil {
			message = strings.TrimSpace(t.Message)
		}
	}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		return nodecleanup.Parse(message)
	case corev1.PodFailed:
		return nil, fmt.Errorf("node %s: %s", a.Node, strings.TrimPrefix(message, "error: "))
	}
	return nil, engine.NotYet("pod %s on node %s has not ended: %s", p.Name, a.Node, connectivity.Why(p))
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
)

const confDir = "/etc/cni/net.d"

// Object is on the network of the node. Its verb decides what it may do there.
func (a *Pod) Object(args ...string) *corev1.Pod {
	c := corev1.Container{
		Name: "replumb", Image: a.Image.Name,
		Args:                   slices.Concat([]string{"node", a.verb}, a.args, args, []string{"--report=" + ReportPath}),
		TerminationMessagePath: ReportPath, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: a.security(),
	}
	var volumes []corev1.Volume
	if a.verb != VerbTraffic && a.verb != VerbForgetSource {
		volumes, c.VolumeMounts = a.host()
	}
	spec := PodSpec(a.Image, c)
	spec.NodeName, spec.RestartPolicy, spec.Volumes = a.Node, corev1.RestartPolicyNever, volumes
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: "node-" + a.verb + "-", Labels: a.labels(),
		},
		Spec: spec,
	}
}

// PodSpec is a pod on the network of its node, which no taint keeps away and nothing pushes out.
func PodSpec(image pull.Image, c corev1.Container) corev1.PodSpec {
	return corev1.PodSpec{
		HostNetwork: true, PriorityClassName: "system-node-critical", DNSPolicy: corev1.DNSDefault,
		AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](1),
		Tolerations:      []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ImagePullSecrets: image.References(), Containers: []corev1.Container{c},
	}
}

// host is the node's own root, read-only with all that is mounted in it, where kubelets can do
// that. A verb that writes gets the directories that it writes beside it.
func (a *Pod) host() (volumes []corev1.Volume, mounts []corev1.VolumeMount) {
	add := func(name, path string, kind corev1.HostPathType) {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind},
		}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: strings.TrimSuffix(HostRoot+path, "/")})
	}
	if a.verb == VerbCilium { // its socket is there, and nothing else is asked
		add("cilium", "/run/cilium", corev1.HostPathDirectory)
		mounts[0].ReadOnly = true
		return volumes, mounts
	}
	add("host", "/", corev1.HostPathUnset)
	mounts[0].ReadOnly = true
	switch a.verb {
	case VerbActivate, VerbDeactivate, VerbAdopt:
		add("conf", confDir, corev1.HostPathDirectoryOrCreate)
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

// RootWith is root in a container that has some capabilities and no others.
func RootWith(capabilities ...corev1.Capability) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0), RunAsNonRoot: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities},
	}
}

// security is what the kernel asks for and no more: NET_ADMIN for connections, interfaces, rules
// and sets, NET_RAW and SYS_CHROOT to run a node's own iptables, DAC_OVERRIDE for files of any
// owner.
func (a *Pod) security() *corev1.SecurityContext {
	var all *corev1.SecurityContext
	switch a.verb {
	case VerbTraffic, VerbForgetSource:
		return RootWith("NET_ADMIN")
	case VerbCilium, VerbDetectSource: // a socket or files of root's, and nothing is changed
		all = RootWith()
	case VerbActivate, VerbDeactivate, VerbAdopt:
		all = RootWith("DAC_OVERRIDE")
	case VerbClean:
		all = RootWith("NET_ADMIN", "NET_RAW", "SYS_CHROOT", "DAC_OVERRIDE")
	default:
		all = RootWith("NET_ADMIN", "NET_RAW", "SYS_CHROOT")
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
		Pod: Pod{Client: c, Migration: migration, Image: image, verb: verb, Node: node, args: args},
		id:  prefix + "/" + node, title: title, Limit: Limit,
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
