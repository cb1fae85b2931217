package kubeproxy

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// The sub-commands of replumb node for rules.
const (
	verbCopy    = "copy-rules"
	verbCompare = "compare-rules"
	verbProgram = "copy-program"
)

// programDir is where a pod has replumb's program beside those of kube-proxy's image.
const programDir = "/program"

// rulesStep runs a sub-command of replumb node with the programs of kube-proxy's image: which of
// iptables' two kinds of tables are read and written depends on them.
type rulesStep struct {
	taskpod.Task
	image     pull.Image
	proxy     *corev1.Container
	id, title string
	mode      v1alpha1.KubeProxyMode
	// evaluate says what the report means.
	evaluate func(context.Context, *nodecleanup.TracesReport) error
	// writes is what its preview shows beside the pod.
	writes []engine.Change
}

var _ engine.Abandoner = (*rulesStep)(nil)

func (s *rulesStep) ID() string                                { return s.id }
func (s *rulesStep) Title() string                             { return s.title }
func (*rulesStep) Deadline() time.Duration                     { return taskpod.Limit }
func (*rulesStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (s *rulesStep) Do(ctx context.Context) error              { return s.Start(ctx, s.pod()) }
func (s *rulesStep) Abandon(ctx context.Context) error         { return s.End(ctx) }

// pod has replumb's program copied into it first. kube-proxy's image is on the node already.
func (s *rulesStep) pod() *corev1.Pod {
	c := taskpod.Container(s.image, []string{s.Verb, "--mode=" + string(s.mode)}, taskpod.RootWith("NET_ADMIN", "NET_RAW"))
	c.Image, c.ImagePullPolicy, c.Command = s.proxy.Image, s.proxy.ImagePullPolicy, []string{programDir + "/replumb"}
	program := corev1.VolumeMount{Name: "program", MountPath: programDir}
	lock, at := taskpod.Mount("lock", "/run/xtables.lock", corev1.HostPathFileOrCreate)
	at.MountPath = "/run/xtables.lock"
	c.VolumeMounts = []corev1.VolumeMount{program, at}
	// SELinux lets containers of this type alone use files of the node. Nodes without it pass it
	// over.
	c.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
	first := taskpod.Container(s.image, []string{verbProgram, "--to=" + programDir + "/replumb"}, taskpod.RootWith())
	first.Name, first.VolumeMounts = "program", []corev1.VolumeMount{program}
	spec := taskpod.Spec(s.image, c)
	spec.InitContainers = []corev1.Container{first}
	spec.Volumes = []corev1.Volume{{Name: "program", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, lock}
	return s.Object(spec)
}

func (s *rulesStep) Preview() ([]engine.Change, error) {
	c := s.pod().Spec.Containers[0]
	return append([]engine.Change{
		{Verb: "run", Object: "Pod on Node " + s.Node, Body: map[string]any{"image": c.Image, "args": c.Args}},
	}, s.writes...), nil
}

func (s *rulesStep) Verify(ctx context.Context) error {
	text, err := s.Report(ctx)
	if err != nil {
		return err
	}
	r, err := nodecleanup.Parse(text)
	if err != nil {
		return err
	}
	if err := s.evaluate(ctx, r); err != nil {
		return err
	}
	return s.End(ctx)
}

// copyRules keeps a copy of a node's rules until forgetCopy.
func (p *Planner) copyRules(node string, to v1alpha1.KubeProxyMode) engine.Step {
	s := p.rules(verbCopy, node, "copy", "Keep a copy of kube-proxy's rules on node "+node, to)
	s.writes = []engine.Change{{Verb: "write", Object: "Node " + node, Body: map[string]any{
		"add": traces(nodecleanup.CopiedRules).Describe(),
	}}}
	s.evaluate = func(_ context.Context, r *nodecleanup.TracesReport) error {
		if len(r.Problems) > 0 {
			return &StrandedError{Node: node, Why: strings.Join(r.Problems, "; ")}
		}
		return nil
	}
	return s
}

// compareRules waits until kube-proxy leads, in its new mode, from all that the copy leads from.
// Services that are gone by now are left out.
func (p *Planner) compareRules(node string, mode v1alpha1.KubeProxyMode) engine.Step {
	title := fmt.Sprintf("Verify that rules of mode %s lead to every Service on node %s", mode, node)
	s := p.rules(verbCompare, node, "compare", title, mode)
	s.evaluate = func(ctx context.Context, r *nodecleanup.TracesReport) error {
		missing, err := stillThere(ctx, p.Tools.Cluster, r.Problems)
		if err != nil || len(missing) == 0 {
			return err
		}
		if err := s.Start(ctx, s.pod()); err != nil {
			return err
		}
		return engine.NotYet("node %s has no rules of mode %s for %s", node, mode, strings.Join(missing[:min(3, len(missing))], ", "))
	}
	return s
}

func (p *Planner) rules(verb, node, prefix, title string, mode v1alpha1.KubeProxyMode) *rulesStep {
	return &rulesStep{
		Task:  taskpod.Task{Client: p.Tools.Client(), Migration: p.spec().Name, Verb: verb, Node: node},
		image: p.Image, proxy: proxyIn(&p.Inventory.own().Spec.Template.Spec), id: prefix + "/" + node, title: title, mode: mode,
	}
}

// stillThere are those of what package proxyrules calls frontends that Services have.
func stillThere(ctx context.Context, c client.Reader, frontends []string) (out []string, err error) {
	if len(frontends) == 0 {
		return nil, nil
	}
	all := &corev1.ServiceList{}
	if err := c.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing services: %w", err)
	}
	have := map[string]bool{}
	for i := range all.Items {
		for _, f := range frontendsOf(&all.Items[i]) {
			have[f] = true
		}
	}
	for _, f := range frontends {
		if have[f] {
			out = append(out, f)
		}
	}
	return out, nil
}

func frontendsOf(svc *corev1.Service) (out []string) {
	addresses := append([]string{}, svc.Spec.ClusterIPs...)
	addresses = append(addresses, svc.Spec.ExternalIPs...)
	for _, in := range svc.Status.LoadBalancer.Ingress {
		addresses = append(addresses, in.IP)
	}
	for _, port := range svc.Spec.Ports {
		protocol := strings.ToLower(string(port.Protocol))
		for _, a := range addresses {
			out = append(out, fmt.Sprintf("%s %s %d", a, protocol, port.Port))
		}
		if port.NodePort != 0 {
			out = append(out, fmt.Sprintf("node %s %d", protocol, port.NodePort))
		}
	}
	return out
}

func traces(name string) nodecleanup.NetworkTraces {
	n, _ := nodecleanup.Find(name)
	return n
}

// StrandedError is a node that would lead to no Service in the mode to come.
type StrandedError struct{ Node, Why string }

func (e *StrandedError) Error() string { return "node " + e.Node + ": " + e.Why }

// Advice is for the node's operator.
func (*StrandedError) Advice() string {
	return "let traffic of pods through in the host's own rules, such as by iptables -P FORWARD ACCEPT, and go on with replumb resume"
}
