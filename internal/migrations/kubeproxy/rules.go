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
	"github.com/replumb/replumb/internal/network/nodepod"
	"github.com/replumb/replumb/internal/network/proxyrules"
)

// verbProgram is the sub-command of replumb node that copies it.
const verbProgram = "copy-program"

// programDir is where a pod has replumb's program beside those of kube-proxy's image.
const programDir = "/program"

// rulesStep runs a sub-command of replumb node with the programs by which kube-proxy writes rules:
// which of iptables' two kinds of tables are read and written depends on them.
type rulesStep struct {
	taskpod.Task
	id, title string
	pod       *corev1.Pod
	// evaluate says what the report means.
	evaluate func(context.Context, *nodecleanup.TracesReport) error
	// writes is what its preview shows beside the pod.
	writes []engine.Change
	// remark is what a person should know of what was found.
	remark string
}

var _ engine.Abandoner = (*rulesStep)(nil)

func (s *rulesStep) ID() string                                { return s.id }
func (s *rulesStep) Title() string                             { return s.title }
func (*rulesStep) Deadline() time.Duration                     { return taskpod.Limit }
func (*rulesStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (s *rulesStep) Do(ctx context.Context) error              { return s.Start(ctx, s.pod.DeepCopy()) }
func (s *rulesStep) Abandon(ctx context.Context) error         { return s.End(ctx) }
func (s *rulesStep) Note() string                              { return s.remark }

// inImage is a pod with the programs of kube-proxy's image, which is on the node already. It has
// replumb's program copied into it first.
func inImage(t taskpod.Task, image pull.Image, proxy *corev1.Container, args ...string) *corev1.Pod {
	c := taskpod.Container(image, append([]string{t.Verb}, args...), taskpod.RootWith("NET_ADMIN", "NET_RAW"))
	c.Image, c.ImagePullPolicy, c.Command = proxy.Image, proxy.ImagePullPolicy, []string{programDir + "/replumb"}
	program := corev1.VolumeMount{Name: "program", MountPath: programDir}
	lock, at := taskpod.Mount("lock", "/run/xtables.lock", corev1.HostPathFileOrCreate)
	at.MountPath = "/run/xtables.lock"
	c.VolumeMounts = []corev1.VolumeMount{program, at}
	// SELinux lets containers of this type alone use files of the node. Nodes without it pass it
	// over.
	c.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
	first := taskpod.Container(image, []string{verbProgram, "--to=" + programDir + "/replumb"}, taskpod.RootWith())
	first.Name, first.VolumeMounts = "program", []corev1.VolumeMount{program}
	spec := taskpod.Spec(image, c)
	spec.InitContainers = []corev1.Container{first}
	spec.Volumes = []corev1.Volume{{Name: "program", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, lock}
	return t.Object(spec)
}

func (s *rulesStep) Preview() ([]engine.Change, error) {
	c := s.pod.Spec.Containers[0]
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
func (p *Planner) copyRules(node string, m modes) engine.Step {
	s := p.rules(nodepod.VerbCopyRules, node, "copy", "Keep a copy of kube-proxy's rules on node "+node, m, proxyrules.TheCopy)
	s.writes = []engine.Change{{Verb: "write", Object: "Node " + node, Body: map[string]any{
		"add": traces(nodecleanup.CopiedRules).Describe(),
	}}}
	s.evaluate = func(_ context.Context, r *nodecleanup.TracesReport) (err error) {
		if len(r.Problems) > 0 {
			return &StrandedError{Node: node, Why: strings.Join(r.Problems, "; ")}
		}
		if p.spec().Program != nil {
			s.remark, err = copyOfProgram(node, m.to, r)
		}
		return err
	}
	return s
}

// compareRules waits until kube-proxy leads, in its new mode, from all that the copy, or mode ipvs,
// leads from. Services that are gone by now are left out.
func (p *Planner) compareRules(node string, m modes, by proxyrules.Against) *rulesStep {
	title := fmt.Sprintf("Verify that rules of mode %s lead to every Service on node %s", m.to, node)
	s := p.rules(nodepod.VerbCompareRules, node, "compare", title, m, by)
	s.evaluate = func(ctx context.Context, r *nodecleanup.TracesReport) error {
		why, err := p.Inventory.lacking(ctx, p.Tools.Cluster, node, m.to, r)
		if err != nil || why == "" {
			return err
		}
		if err := s.Start(ctx, s.pod.DeepCopy()); err != nil {
			return err
		}
		return engine.NotYet("%s", why)
	}
	return s
}

// lacking says what rules of a mode do not lead to yet; empty, if they lead to everything.
func (s *Inventory) lacking(
	ctx context.Context, c client.Reader, node string, mode v1alpha1.KubeProxyMode, r *nodecleanup.TracesReport,
) (string, error) {
	if said := proxyrules.Said(r); s.Spec.Program != nil && said != "" && said != string(mode) {
		return fmt.Sprintf("kube-proxy on node %s says that it has mode %s, not %s", node, said, mode), nil
	}
	if len(r.Problems) > 0 && r.Problems[0] == proxyrules.NoRules {
		return fmt.Sprintf("kube-proxy has no rules of mode %s on node %s", mode, node), nil
	}
	missing, err := stillThere(ctx, c, r.Problems)
	if err != nil || len(missing) == 0 {
		return "", err
	}
	return fmt.Sprintf("node %s has no rules of mode %s for %s", node, mode, strings.Join(missing[:min(3, len(missing))], ", ")), nil
}

func (p *Planner) rules(verb, node, prefix, title string, m modes, by proxyrules.Against) *rulesStep {
	s := &rulesStep{
		Task: taskpod.Task{Client: p.Tools.Client(), Migration: p.spec().Name, Verb: verb, Node: node},
		id:   prefix + "/" + node, title: title,
	}
	args := []string{"--mode=" + string(m.to)}
	switch {
	case m.beside():
		args = append(args, "--against="+string(by))
	case verb == nodepod.VerbCompareRules && p.spec().Program != nil: // a person may take hours
		args = append(args, "--refresh")
	}
	if proxy := p.Inventory.container(node); proxy != nil {
		s.pod = inImage(s.Task, p.Image, proxy, args...)
	} else {
		s.pod = (&nodepod.Pod{Task: s.Task, Image: p.Image}).Object(append(args, "--root="+taskpod.HostRoot)...)
	}
	return s
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
