package cni

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// StandingError says what keeps a node from having both networks.
type StandingError struct {
	Node     string
	Problems []string
}

func (e *StandingError) Error() string {
	return fmt.Sprintf("node %s cannot have both networks: %s", e.Node, strings.Join(e.Problems, "; "))
}

func (*StandingError) Advice() string {
	return "no node has been switched; correct that on the node and run apply again, or rollback"
}

// standing has a node looked at before any pod leaves it.
func (p *Planner) standing(node string) engine.Step {
	return looker{&agentStep{
		agent: p.agent(verbStanding, node, p.about(p.spec().To, node)...), id: "standing/" + node, time: agentTime,
		title: "Verify that node " + node + " can have both networks",
		judge: func(r *nodecleanup.Report) error {
			if len(r.Problems) == 0 {
				return nil
			}
			return &StandingError{Node: node, Problems: r.Problems}
		},
	}}
}

// JoinedError says that nodes have joined while others were switched: the network that they give their pods is the old one.
type JoinedError struct {
	Nodes []string
	To    v1alpha1.CNIName
}

func (e *JoinedError) Error() string {
	return fmt.Sprintf(
		"%s joined and not switched to %s: %s",
		english.Plural(len(e.Nodes), "node has", "nodes have"),
		e.To,
		strings.Join(e.Nodes, ", "),
	)
}

func (*JoinedError) Advice() string { return "run apply again: it switches them" }

// everyNode fails with a *JoinedError if a node is there that was not when nodes were planned, or that another run has left.
func (p *Planner) everyNode() engine.Step {
	of := occupancy{p.Tools, p.spec(), p.spec().To}
	return &engine.Wait{Name: "nodes", About: "Verify that every node is switched", Again: true, For: func(ctx context.Context) error {
		now, err := of.look(ctx)
		if err != nil {
			return err
		}
		if names := now.unswitched(); len(names) > 0 {
			return &JoinedError{Nodes: names, To: p.spec().To}
		}
		return nil
	}}
}

// prefer has a node give new pods the network that a direction goes to.
func (p *Planner) prefer(node string, d engine.Direction) engine.Step {
	if d == backward {
		return &agentStep{
			agent: p.agent(verbUnprefer, node, "--root="+hostRoot), id: "switch/" + node, time: agentTime,
			title: fmt.Sprintf("Have node %s give new pods the network of %s again", node, p.Survey.from()),
		}
	}
	return &agentStep{
		agent: p.agent(verbPrefer, node, string(p.spec().To), "--root="+hostRoot), id: "switch/" + node, time: agentTime,
		title: fmt.Sprintf("Have node %s give new pods the network of %s", node, p.spec().To),
	}
}

// adoptNode has a node go by the file that the new network itself writes.
func (p *Planner) adoptNode(node string) engine.Step {
	return &agentStep{
		agent: p.agent(verbAdopt, node, string(p.spec().To), "--root="+hostRoot), id: "adopt/" + node, time: agentTime,
		title: fmt.Sprintf("Have node %s go by the configuration that %s writes", node, p.spec().To),
	}
}

// label writes on a Node which network its new pods have. On the way back that is nothing, as it was.
func (p *Planner) label(name string, d engine.Direction) engine.Step {
	m := nodeMark{
		id: "label/" + name, about: "Record which network new pods on node " + name + " have", node: name,
		annotation: true, key: v1alpha1.AnnotationPodNetwork, value: string(p.spec().To),
	}
	if d == backward {
		m.id, m.value = "unlabel/"+name, ""
	}
	return m.step(p.Tools.Cluster)
}

// beside lets the programs of the new network start on a node. On the way back, and at the end, that is nothing, as it was.
func (p *Planner) beside(name string, d engine.Direction) engine.Step {
	m := nodeMark{
		id: "beside/" + name, about: fmt.Sprintf("Let %s start on node %s", p.spec().To, name), node: name,
		key: v1alpha1.LabelBeside, value: string(p.spec().To),
	}
	if d == backward {
		m.id, m.about, m.value = "unmark/"+name, "Remove the mark of the new network from node "+name, ""
	}
	return m.step(p.Tools.Cluster)
}

// started waits until the DaemonSets of the new network are ready on every node that is marked by now, and the nodes of a round are well.
func (p *Planner) started(round []string, sets []client.ObjectKey) engine.Step {
	about := fmt.Sprintf("Wait for %s on node %s", p.spec().To, round[0])
	if len(round) > 1 {
		about = fmt.Sprintf("%s and %d more", about, len(round)-1)
	}
	s := spread{tools: p.Tools, network: p.spec().To, sets: sets}
	return &engine.Wait{Name: "started/" + round[0], About: about, Limit: rolloutTime, For: func(ctx context.Context) error {
		return s.onMarked(ctx, round)
	}}
}

// ready waits until a switched node is ready again, before anything is tried there and before the next node takes no more pods.
func (p *Planner) ready(name string) engine.Step {
	return &engine.Wait{
		Name:  "ready/" + name,
		About: "Wait until node " + name + " is ready with its network",
		Limit: p.spec().InPlace.Timeout.Duration,
		Again: true,
		For: func(ctx context.Context) error {
			n, err := cordon.Read(ctx, p.Tools.Cluster, name)
			if err != nil || n == nil { // a node that is gone keeps no one waiting
				return err
			}
			if why := unfit(n); why != "" {
				return engine.NotYet("node %s: %s", name, why)
			}
			return nil
		},
	}
}

// counted writes on the Migration how many pods have the new network by now.
func (p *Planner) counted(after string) engine.Step {
	tools, spec, ranges := p.Tools, p.spec(), p.Survey.Ranges
	m := p.Survey.Manifests
	return &engine.Observed[v1alpha1.Counts]{
		Name: "note/" + after, About: "Record that " + after + " is switched", As: engine.RoleOwn,
		Look: func(ctx context.Context) (engine.State, v1alpha1.Counts, error) { // an earlier note says nothing of now
			now := &Survey{Spec: spec, Ranges: ranges, Manifests: m}
			if err := tools.occupants(ctx, now); err != nil {
				return engine.Unknown, v1alpha1.Counts{}, err
			}
			return engine.Pending, now.Counts(), nil
		},
		Write: func(ctx context.Context, counts v1alpha1.Counts) error {
			return migration.UpdateStatus(ctx, tools.Cluster, spec.Name, func(st *v1alpha1.MigrationStatus) { st.Counts = counts })
		},
		Proof:   func(context.Context) error { return nil },
		Changes: migration.StatusChange(spec.Name, map[string]any{"counts": "of pods with the old and with the new network"}),
	}
}

// crossing is a DaemonSet that keeps packets between pods of both networks as they are: each network would give those that leave it the
// address of a node, and NetworkPolicies would not see pods any more.
type crossing struct {
	tools     Tools
	migration string
	image     pull.Image
	// ranges are those of both networks.
	ranges string
}

func (p *Planner) crossing() crossing {
	ranges := join(append(append(p.Survey.Ranges[:0:0], p.Survey.Ranges...), p.Survey.target()...))
	return crossing{tools: p.Tools, migration: p.spec().Name, image: p.image(), ranges: ranges}
}

// cross has packets keep their addresses between both networks, where those can do with that.
func (p *Planner) cross() []engine.Group {
	if p.Survey.hides() {
		return nil
	}
	return engine.InOrder(p.crossing().start())
}

// crossingTime is how long its image may take to come to every node.
const crossingTime = 10 * time.Minute

func (c crossing) key() client.ObjectKey {
	return client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: c.migration + "-crossing"}
}

func (c crossing) labels() map[string]string {
	return map[string]string{v1alpha1.LabelMigration: c.migration, agentLabel: verbCross}
}

func (c crossing) set() *appsv1.DaemonSet {
	ranges := "--ranges=" + c.ranges
	security := &corev1.SecurityContext{
		RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0), RunAsNonRoot: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
	}
	pod := corev1.PodSpec{
		HostNetwork: true, PriorityClassName: "system-node-critical", DNSPolicy: corev1.DNSDefault,
		AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](1),
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, ImagePullSecrets: c.image.References(),
		Containers: []corev1.Container{{
			Name: "replumb", Image: c.image.Name, Args: []string{"node", verbCross, ranges}, SecurityContext: security,
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/replumb", "node", "crossed", ranges}}},
				PeriodSeconds: 5, TimeoutSeconds: 5, //nolint:mnd // seconds
			},
		}},
	}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.key().Namespace, Name: c.key().Name, Labels: c.labels()},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: c.labels()},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: c.labels()}, Spec: pod},
		},
	}
}

// start brings it to every node, and waits until it holds there.
func (c crossing) start() engine.Step {
	return &engine.Write{
		Name: "crossing", About: "Keep pods' own addresses between both networks, on every node", Limit: crossingTime,
		Holds: func(ctx context.Context) error {
			have := &appsv1.DaemonSet{}
			err := c.tools.Cluster.Get(ctx, c.key(), have)
			if apierrors.IsNotFound(err) {
				return engine.NotYet("DaemonSet %s does not exist", c.key())
			}
			if err != nil {
				return fmt.Errorf("daemonset %s: %w", c.key(), err)
			}
			if !c.keeps(have) {
				return engine.NotYet("DaemonSet %s is of other ranges", c.key())
			}
			return spread{tools: c.tools}.ready(ctx, have, 0)
		},
		Write: func(ctx context.Context) error {
			if err := c.outdated(ctx); err != nil {
				return err
			}
			err := c.tools.Cluster.Create(ctx, c.set(), client.FieldOwner(v1alpha1.FieldManager))
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("daemonset %s: %w", c.key(), err)
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "create", Object: "DaemonSet " + c.key().String(), Body: c.set()}}, nil
		},
	}
}

// keeps reports whether a DaemonSet is about these ranges.
func (c crossing) keeps(have *appsv1.DaemonSet) bool {
	containers := have.Spec.Template.Spec.Containers
	return len(containers) == 1 && slices.Equal(containers[0].Args, c.set().Spec.Template.Spec.Containers[0].Args)
}

// outdated deletes one of other ranges, such as of before a node joined. What it has set on nodes stays until the next one changes it.
func (c crossing) outdated(ctx context.Context) error {
	have := &appsv1.DaemonSet{}
	err := c.tools.Cluster.Get(ctx, c.key(), have)
	if err == nil && !c.keeps(have) {
		uid := have.UID
		err = c.tools.Cluster.Delete(
			ctx,
			have,
			client.Preconditions{UID: &uid},
			client.PropagationPolicy(metav1.DeletePropagationBackground),
		)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("daemonset %s: %w", c.key(), err)
	}
	return nil
}

// end takes it away.
func (c crossing) end() engine.Step {
	return &engine.Write{
		Name: "uncross", About: "Remove what kept pods' own addresses between both networks", Limit: crossingTime,
		Holds: func(ctx context.Context) error {
			err := c.tools.Cluster.Get(ctx, c.key(), &appsv1.DaemonSet{})
			if err == nil {
				return engine.NotYet("DaemonSet %s is still there", c.key())
			}
			return client.IgnoreNotFound(err)
		},
		Write: func(ctx context.Context) error {
			set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: c.key().Namespace, Name: c.key().Name}}
			err := c.tools.Cluster.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationForeground))
			return client.IgnoreNotFound(err)
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "delete", Object: "DaemonSet " + c.key().String()}}, nil
		},
	}
}

// uncross removes the DaemonSet, and what it has set on each node.
func (p *Planner) uncross() []engine.Group {
	if p.Survey.hides() {
		return nil
	}
	var steps []engine.Step
	for _, node := range p.Survey.NodeNames() {
		steps = append(steps, &agentStep{
			agent: p.agent(verbUncross, node), id: "uncross/" + node, time: agentTime,
			title: "Have node " + node + " translate addresses as before",
		})
	}
	return append(engine.InOrder(p.crossing().end()), engine.AtOnce(parallel, "Nodes", steps...)...)
}
