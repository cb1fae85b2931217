package cni

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

const (
	// agentLabel is on every pod that does something on a node; its value is what.
	agentLabel = "replumb.dev/on-node"
	// agentTime is how long its image may take to come, and it may work.
	agentTime = 5 * time.Minute
	hostRoot  = "/host"
	// report is where the kubelet reads a container's last words.
	report = "/dev/termination-log"
)

// agent is a pod on a node that does one thing, reports and ends. It has no access to the API.
type agent struct {
	tools     Tools
	migration string
	image     pull.Image
	// verb is what it is for, and part of its labels.
	verb, node string
	args       []string
}

func (a *agent) labels() client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: a.migration, agentLabel: a.verb}
}

// start makes the pod. One of an earlier run is ended first: what it found may have changed since.
func (a *agent) start(ctx context.Context) error {
	if err := a.end(ctx); err != nil {
		return err
	}
	if err := a.tools.Cluster.Create(ctx, a.pod(), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("a pod on node %s: %w", a.node, err)
	}
	return nil
}

func (a *agent) pods(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := a.tools.Cluster.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace), a.labels()); err != nil {
		return nil, fmt.Errorf("looking for the pod on node %s: %w", a.node, err)
	}
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool {
		return p.Spec.NodeName != a.node || !p.DeletionTimestamp.IsZero()
	}), nil
}

func (a *agent) end(ctx context.Context) error {
	all, err := a.pods(ctx)
	for i := range all {
		if e := a.tools.Cluster.Delete(ctx, &all[i], client.GracePeriodSeconds(1)); client.IgnoreNotFound(e) != nil {
			return fmt.Errorf("ending pod %s: %w", all[i].Name, e)
		}
	}
	return err
}

// outcome is what the pod reported, once it has.
func (a *agent) outcome(ctx context.Context) (*nodecleanup.Report, error) {
	all, err := a.pods(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, engine.NotYet("node %s has no pod of replumb", a.node)
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
		return nil, fmt.Errorf("node %s: %s", a.node, strings.TrimPrefix(message, "error: "))
	}
	return nil, engine.NotYet("pod %s on node %s has not ended: %s", p.Name, a.node, connectivity.Why(p))
}

// The verbs of agents.
const (
	verbTraffic = "traffic"
	verbResidue = "residue"
	verbClean   = "clean"
	// Those of mode InPlace: standing looks whether a node can have both networks, prefer and unprefer switch it, adopt has it go by the new
	// network's own file, origin looks what it goes by before, cross keeps pods' addresses between both, and uncross no longer.
	verbStanding = "standing"
	verbOrigin   = "origin"
	verbPrefer   = "prefer"
	verbUnprefer = "unprefer"
	verbAdopt    = "adopt"
	verbCross    = "cross"
	verbUncross  = "uncross"
	// Those of kube-proxy's replacement: cilium asks the agent of that name, services looks who leads to Services.
	verbCilium   = "cilium"
	verbServices = "services"
)

// confDir is where runtimes read CNI configurations.
const confDir = "/etc/cni/net.d"

// pod is on the network of the node. What it may do there follows from what it is for.
func (a *agent) pod() *corev1.Pod {
	c := corev1.Container{
		Name: "replumb", Image: a.image.Name, Args: slices.Concat([]string{"node", a.verb}, a.args, []string{"--report=" + report}),
		TerminationMessagePath: report, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: a.security(),
	}
	var volumes []corev1.Volume
	if a.verb != verbTraffic && a.verb != verbUncross {
		volumes, c.VolumeMounts = a.host()
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: "node-" + a.verb + "-", Labels: a.labels(),
		},
		Spec: corev1.PodSpec{
			NodeName: a.node, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, PriorityClassName: "system-node-critical",
			AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false), DNSPolicy: corev1.DNSDefault,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			ImagePullSecrets:              a.image.References(),
			Containers:                    []corev1.Container{c},
			Volumes:                       volumes,
		},
	}
}

// host is the node's own root, read-only with all that is mounted in it, where kubelets can do that. One that cleans may write the directories of
// the network that it removes, and the lock of iptables.
func (a *agent) host() (volumes []corev1.Volume, mounts []corev1.VolumeMount) {
	add := func(name, path string, kind corev1.HostPathType) {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind},
		}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: strings.TrimSuffix(hostRoot+path, "/")})
	}
	if a.verb == verbCilium { // its socket is there, and nothing else is asked
		add("cilium", "/run/cilium", corev1.HostPathDirectory)
		mounts[0].ReadOnly = true
		return volumes, mounts
	}
	add("host", "/", corev1.HostPathUnset)
	mounts[0].ReadOnly = true
	switch a.verb {
	case verbPrefer, verbUnprefer, verbAdopt:
		add("conf", confDir, corev1.HostPathDirectoryOrCreate)
		return volumes, mounts
	case verbClean:
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

// security is what an agent may do on its node, which is what the kernel asks for and no more: NET_ADMIN for connections, interfaces, rules and
// sets; and where there are files and tables of a node's own iptables, SYS_CHROOT to run that, and NET_RAW, which it asks for. One that
// cleans removes files of any owner.
func (a *agent) security() *corev1.SecurityContext {
	all := &corev1.SecurityContext{
		RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0), RunAsNonRoot: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
	}
	switch a.verb {
	case verbTraffic, verbUncross:
		return all
	case verbCilium: // a socket of root's
		all.Capabilities.Add = nil
		all.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
		return all
	case verbOrigin: // files of root's, and nothing is changed
		all.Capabilities.Add = nil
		all.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
		return all
	case verbPrefer, verbUnprefer, verbAdopt: // files of any owner, and nothing of the network
		all.Capabilities.Add = []corev1.Capability{"DAC_OVERRIDE"}
		all.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
		return all
	}
	all.Capabilities.Add = append(all.Capabilities.Add, "NET_RAW", "SYS_CHROOT")
	if a.verb == verbClean {
		all.Capabilities.Add = append(all.Capabilities.Add, "DAC_OVERRIDE")
	}
	// Files of the node have labels of SELinux that containers may not read, unless they are of this type. Nodes without it pass it over.
	all.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
	return all
}

// agentStep runs an agent. What an earlier one did cannot be seen from outside, so it is done in every run.
type agentStep struct {
	agent
	id, title string
	time      time.Duration
	// judge says what the report means; nil takes any.
	judge func(*nodecleanup.Report) error
}

var _ engine.Abandoner = (*agentStep)(nil)

func (s *agentStep) ID() string                                { return s.id }
func (s *agentStep) Title() string                             { return s.title }
func (s *agentStep) Deadline() time.Duration                   { return s.time }
func (*agentStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (s *agentStep) Do(ctx context.Context) error              { return s.start(ctx) }
func (s *agentStep) Abandon(ctx context.Context) error         { return s.end(ctx) }

func (s *agentStep) Preview() ([]engine.Change, error) {
	return []engine.Change{
		{Verb: "run", Object: "Pod on Node " + s.node, Body: map[string]any{"args": s.pod().Spec.Containers[0].Args}},
	}, nil
}

func (s *agentStep) Verify(ctx context.Context) error {
	r, err := s.outcome(ctx)
	if err != nil {
		return err
	}
	if s.judge != nil {
		if err := s.judge(r); err != nil {
			return err
		}
	}
	return s.end(ctx)
}

// looker only looks: it ends at once when a run does.
type looker struct{ *agentStep }

func (looker) Waits() {}

func (p *Planner) agent(verb, node string, args ...string) agent {
	return agent{tools: p.Tools, migration: p.spec().Name, image: p.image(), verb: verb, node: node, args: args}
}

// about are the arguments of commands about what a network left on a node.
func (p *Planner) about(network v1alpha1.CNIName, node string) []string {
	ranges := p.Survey.Ranges
	switch network {
	case p.spec().To:
		ranges = p.Survey.target()
	case v1alpha1.HostLocal: // they tell its own files from those of others
		ranges = p.Survey.ownRanges(node)
	}
	return []string{string(network), "--root=" + hostRoot, "--pods=" + join(ranges)}
}

func join(ranges []netip.Prefix) string {
	var out []string
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return strings.Join(out, ",")
}

func (p *Planner) cleaner(network v1alpha1.CNIName, id, node string) engine.Step {
	return &cleanStep{&agentStep{
		agent: p.agent(verbClean, node, p.about(network, node)...), id: id + "/" + node, time: agentTime,
		title: fmt.Sprintf("Remove what %s has left on node %s", network, node),
	}}
}

// cleanStep shows what it removes.
type cleanStep struct{ *agentStep }

func (s *cleanStep) Preview() ([]engine.Change, error) {
	n, _ := nodecleanup.Find(s.args[0])
	runs, err := s.agentStep.Preview()
	return append(runs, engine.Change{Verb: "clean", Object: "Node " + s.node, Body: map[string]any{"remove": n.Describe()}}), err
}

func (p *Planner) residue(network v1alpha1.CNIName, id, node string) engine.Step {
	return looker{&agentStep{
		agent: p.agent(verbResidue, node, p.about(network, node)...), id: id + "/" + node, time: agentTime,
		title: fmt.Sprintf("Verify that node %[2]s is clean of %[1]s", network, node),
		judge: func(r *nodecleanup.Report) error {
			if r.Empty() {
				return nil
			}
			return fmt.Errorf("node %s still has of %s: %s", node, network, r)
		},
	}}
}

// TrafficError says that a cluster that was to serve no one does.
type TrafficError struct {
	Node    string
	Clients string
}

func (e *TrafficError) Error() string {
	return fmt.Sprintf("node %s serves clients from outside: %s", e.Node, e.Clients)
}

func (*TrafficError) ExitCode() int { return fault.ExitBlocked }

func (*TrafficError) Advice() string {
	return "lead them to another cluster first; name in spec.cni.traffic.ignore who is no client, or run apply --accept-downtime"
}

// watches look for clients on every node at the same time.
func (p *Planner) watches() []engine.Step {
	args := []string{
		"--window=" + p.spec().Window.String(), "--inside=" + strings.Join(p.Survey.inside(), ","), "--ignore=" + join(p.spec().Ignore),
		"--served=" + join(slices.Concat(p.Survey.Ranges, p.Survey.Services)),
	}
	if ports := p.Survey.hostPorts(); len(ports) > 0 {
		args = append(args, "--ports="+strings.Join(ports, ","))
	}
	var steps []engine.Step
	for _, node := range p.Survey.NodeNames() {
		steps = append(steps, looker{&agentStep{
			agent: p.agent(verbTraffic, node, args...), id: "quiet/" + node, time: agentTime + p.spec().Window,
			title: "Verify that node " + node + " serves no one from outside",
			judge: func(r *nodecleanup.Report) error {
				if len(r.Clients) == 0 && r.More == 0 {
					return nil
				}
				return &TrafficError{Node: node, Clients: r.String()}
			},
		}})
	}
	return steps
}

// inside are the addresses of nodes, and the ranges of pods and Services.
func (s *Survey) inside() []string {
	var out []string
	for i := range s.Nodes {
		for _, a := range s.Nodes[i].Status.Addresses {
			if _, err := netip.ParseAddr(a.Address); err == nil && !slices.Contains(out, a.Address) {
				out = append(out, a.Address)
			}
		}
	}
	for _, r := range slices.Concat(s.Ranges, s.Services) {
		out = append(out, r.String())
	}
	return out
}

// hostPorts are ports that pods on the network of their node, but the cluster's own, answer on.
func (s *Survey) hostPorts() []string {
	var out []string
	for i := range s.Pods {
		p := &s.Pods[i]
		if !p.Spec.HostNetwork || p.Namespace == metav1.NamespaceSystem || p.Namespace == v1alpha1.SystemNamespace {
			continue
		}
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				if text := strconv.Itoa(int(port.ContainerPort)); !slices.Contains(out, text) {
					out = append(out, text)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}
