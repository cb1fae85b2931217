// Package kubeadmgate passes gates on clusters that kubeadm made: pods of replumb's own change the
// files of one node after the other, and its ConfigMaps are changed beside them.
// docs/design/kubeadm-gates.md says what may go wrong, and what is done then.
package kubeadmgate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/kubeadm/onnode"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/taskpod"
)

// Gates makes the steps of gates.
type Gates struct {
	Cluster   *cluster.Cluster
	Migration string
	Image     pull.Image
	// ControlPlanes are the nodes with an API server that runs from a file, and Nodes all.
	ControlPlanes, Nodes []string
	// ByHand says how a gate is left to people instead.
	ByHand string
}

// New is for a cluster that kubeadm has left so, with these nodes.
func New(c *cluster.Cluster, migration string, image pull.Image, f *KubeadmState, nodes []corev1.Node) *Gates {
	g := &Gates{Cluster: c, Migration: migration, Image: image, ControlPlanes: f.ControlPlanes}
	for i := range nodes {
		g.Nodes = append(g.Nodes, nodes[i].Name)
	}
	slices.Sort(g.Nodes)
	return g
}

const (
	verbLook        = "kubeadm-look"
	verbCertificate = "kubeadm-certificate"
	verbFlags       = "kubeadm-flags"
	verbKubelet     = "kubeadm-kubelet"
	verbForget      = "kubeadm-forget"
)

// patience is how long a program may take to be ready with a changed file before it is put back. An
// API server is away for most of a minute.
const patience = 4 * time.Minute

// looksAtOnce is on how many nodes replumb only looks, or removes its backups, at once.
const looksAtOnce = 16

// Expected is what is to be found usual before anything moves.
type Expected struct {
	Flags       []onnode.FlagChange
	Certificate bool
	// DNSFrom and DNSTo are addresses of cluster DNS, if kubelets are to be changed.
	DNSFrom, DNSTo []string
}

// Examine has every node that is to be changed looked at.
func (g *Gates) Examine(l Expected) []engine.Group {
	var steps []engine.Step
	for _, node := range g.Nodes {
		var args []string
		if slices.Contains(g.ControlPlanes, node) {
			for _, c := range l.Flags {
				args = append(args, "--change="+c.String())
			}
			if l.Certificate {
				args = append(args, "--certificate")
			}
		}
		if len(l.DNSFrom) > 0 {
			args = append(args, dnsArgs(l.DNSFrom, l.DNSTo)...)
		}
		if len(args) > 0 {
			s := g.step(verbLook, node, "look", "Verify that node "+node+" is as kubeadm makes it", args...)
			s.reads = true
			steps = append(steps, s)
		}
	}
	return engine.AtOnce(looksAtOnce, "", steps...)
}

// Certificate has the API server of a node serve a certificate for some addresses more. The pod
// sees it served; already says whether all API servers do.
func (g *Gates) Certificate(node string, addresses []string, already func(context.Context) error) engine.Step {
	s := g.step(verbCertificate, node, "certificate", "Have the API server on "+node+" serve a certificate for "+strings.Join(addresses, " and "),
		"--address="+strings.Join(addresses, ","))
	s.already, s.edits = already, []engine.Change{edit(node, "/etc/kubernetes/pki/apiserver.crt", map[string]any{"subjectAltName": addresses})}
	return s
}

// Flags gives a program of the control plane of a node other flags, at a gate of this name. All
// others have to be ready before.
func (g *Gates) Flags(gate, node string, c onnode.FlagChange) engine.Step {
	s := g.step(verbFlags, node, gate+"/"+c.Program, fmt.Sprintf("Restart %s on %s with %s", c.Program, node, settings(c.To)), "--change="+c.String())
	seen := g.runsWith(node, c)
	s.already, s.proof, s.before = seen, seen, g.othersReady(node, c.Program)
	s.edits = []engine.Change{edit(node, "/etc/kubernetes/manifests/"+c.Program+".yaml", diff(c))}
	return s
}

// Kubelet has the kubelet of a node name other addresses of cluster DNS; holds asks it. The pods
// that were ready there have to be ready again before the next node's turn.
func (g *Gates) Kubelet(node string, from, to []string, holds func(context.Context) error) engine.Step {
	s := g.step(verbKubelet, node, "kubelet", fmt.Sprintf("Restart the kubelet of %s with clusterDNS %s", node, strings.Join(to, ", ")), dnsArgs(from, to)...)
	ready := &readyPods{client: g.client(), node: node}
	s.already, s.before = holds, ready.remember
	s.proof = func(ctx context.Context) error {
		if err := holds(ctx); err != nil {
			return err
		}
		return ready.again(ctx)
	}
	s.edits = []engine.Change{edit(node, "/var/lib/kubelet/config.yaml", map[string]any{"-": list(from), "+": list(to)})}
	return s
}

// Forget removes the backups of every node, and the former certificate's names where it is to go.
func (g *Gates) Forget(back bool) []engine.Group {
	var undo, forget []engine.Step
	for _, node := range g.Nodes {
		if back && slices.Contains(g.ControlPlanes, node) {
			s := g.step(verbCertificate, node, "uncertificate", "Put the former certificate of the API server on "+node+" back")
			s.args[1] = "uncertificate"
			s.edits = []engine.Change{edit(node, "/etc/kubernetes/pki/apiserver.crt", "as it was, unless it was renewed since")}
			undo = append(undo, s)
		}
		s := g.step(verbForget, node, "forget", "Remove the backups of files on "+node)
		s.edits = []engine.Change{edit(node, "/etc/kubernetes/replumb/"+g.Migration, "removed")}
		forget = append(forget, s)
	}
	return append(engine.InOrder(undo...), engine.AtOnce(looksAtOnce, "", forget...)...)
}

func dnsArgs(from, to []string) []string {
	return []string{"--from=" + strings.Join(from, ","), "--to=" + strings.Join(to, ",")}
}

func edit(node, file string, body any) engine.Change {
	return engine.Change{Verb: "edit", Object: "File " + file + " on Node " + node, Body: body}
}

func diff(c onnode.FlagChange) map[string]any {
	return map[string]any{"-": flags(c.From), "+": flags(c.To)}
}

func flags(values map[string]string) (lines []string) {
	for name, value := range values {
		lines = append(lines, "    - --"+name+"="+value)
	}
	slices.Sort(lines)
	return lines
}

func list(addresses []string) (lines []string) {
	for _, a := range addresses {
		lines = append(lines, "- "+a)
	}
	return lines
}

func settings(values map[string]string) string {
	var all []string
	for name, value := range values {
		all = append(all, "--"+name+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (g *Gates) step(verb, node, id, title string, args ...string) *step {
	_, sub, _ := strings.Cut(verb, "-")
	return &step{
		byHand: g.ByHand,
		pod:    taskpod.Task{Client: g.client(), Migration: g.Migration, Verb: verb, Node: node}, image: g.Image,
		id: "kubeadm/" + id + "/" + node, title: title,
		args: slices.Concat([]string{"kubeadm", sub, "--root=" + taskpod.HostRoot, "--migration=" + g.Migration, "--patience=" + patience.String()}, args),
	}
}

// spec is a pod that sees the processes of its node. Only one that restarts a kubelet is more than
// root with the files of /etc/kubernetes.
func (s *step) spec() corev1.PodSpec {
	c := taskpod.Container(s.image, s.args, taskpod.RootWith("DAC_OVERRIDE", "CHOWN", "FOWNER"))
	c.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
	name, path := "kubernetes", "/etc/kubernetes"
	if slices.Contains(s.args, "kubelet") || slices.ContainsFunc(s.args, func(arg string) bool { return strings.HasPrefix(arg, "--from=") }) {
		name, path = "host", "/"
		c.SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true), RunAsUser: ptr.To[int64](0), RunAsNonRoot: ptr.To(false)}
	}
	v, m := taskpod.Mount(name, path, corev1.HostPathDirectory)
	m.ReadOnly = s.reads
	c.VolumeMounts = []corev1.VolumeMount{m}
	spec := taskpod.Spec(s.image, c)
	spec.HostPID, spec.Volumes = true, []corev1.Volume{v}
	// One that is deleted while it waits for a program still has to put its file back.
	spec.TerminationGracePeriodSeconds = ptr.To(int64((2*patience + time.Minute).Seconds()))
	return spec
}
