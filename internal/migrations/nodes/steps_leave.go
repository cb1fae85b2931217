package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
)

// excludedByUs is the value of the exclusion label that replumb sets; any value excludes.
const excludedByUs = "replumb"

// end takes empty nodes out, in this order: pods of DaemonSets leave their Services, nodes and load
// balancers learn of it, agents leave, machines end.
func (p *Planner) end(title string, batch []OldNode) []engine.Group {
	l := p.live()
	each := func(step func(name string) engine.Step) []engine.Group {
		var steps []engine.Step
		for i := range batch {
			if batch[i].Node != nil {
				steps = append(steps, step(batch[i].Name))
			}
		}
		return engine.AtOnce(parallel, title, steps...)
	}
	var groups []engine.Group
	if p.Inventory.Balanced {
		groups = each(l.exclude)
	}
	groups = append(groups, slices.Concat(each(l.leave), p.known(title), each(l.part))...)
	if p.Agents != nil {
		groups = append(groups, each(l.sendAgents)...)
		groups = append(groups, each(p.Agents.Vacated)...)
	}
	var ends []engine.Step
	for i := range batch {
		ends = append(ends, l.terminate(&batch[i]))
	}
	return append(groups, engine.AtOnce(len(batch), title, ends...)...)
}

// known waits until every node and load balancers know what has left; without agents, for a while.
func (p *Planner) known(title string) []engine.Group {
	var steps []engine.Step
	if p.Agents != nil {
		steps = append(steps, &bridge.Barrier{
			Client: p.Tools.Client(), Witness: p.Agents.Watch, Migration: p.spec().Name,
			Name: "leave/" + title, Limit: p.Agents.Wait + time.Minute,
			About: "Prove that every ready node knows what has left its Services on " + title,
		})
	}
	if settle := p.spec().Ingress.Settle.Duration; settle > 0 && (p.Inventory.Balanced || p.Agents == nil && p.Inventory.serveFromEnding()) {
		steps = append(steps, &migration.PauseStep{
			Name:   "settle/" + title,
			About:  fmt.Sprintf("Give load balancers and kube-proxies %s to leave %s", settle, title),
			Length: settle, Now: p.Tools.Now,
		})
	}
	return engine.InOrder(steps...)
}

// exclude keeps load balancers off a node, by the label that clouds and MetalLB go by
// (k8s.io/cloud-provider controllers/service, nodeConditionPredicate).
func (l live) exclude(name string) engine.Step { return l.excludeAs("exclude/"+name, name) }

func (l live) excludeAs(id, name string) engine.Step {
	const label = corev1.LabelNodeExcludeBalancers
	return l.nodeStep(id, "Keep load balancers off node "+name, name, func(n *corev1.Node) string {
		if _, has := n.Labels[label]; !has {
			return "has no label " + label
		}
		return ""
	}, func(n *corev1.Node) { metav1.SetMetaDataLabel(&n.ObjectMeta, label, excludedByUs) }, labelBody(label, excludedByUs))
}

func labelBody(label string, value any) map[string]any {
	return map[string]any{"metadata": map[string]any{"labels": map[string]any{label: value}}}
}

// sendAgents has the agent in the pod network leave. Later losses of its node do not count.
func (l live) sendAgents(name string) engine.Step {
	const label = v1alpha1.LabelAgents
	s := l.nodeStep("agents/apart/"+name, "Have the agent that others call leave node "+name, name, func(n *corev1.Node) string {
		if n.Labels[label] == "" {
			return "has no label " + label
		}
		return ""
	}, func(n *corev1.Node) {
		metav1.SetMetaDataLabel(&n.ObjectMeta, label, v1alpha1.HostAgent)
	}, labelBody(label, v1alpha1.HostAgent))
	s.As = engine.RoleOwn
	return s
}

func (l live) leaver() leaving.Leaver {
	return leaving.Leaver{Client: l.Cluster, Migration: l.spec.Name}
}

// stays reports whether a pod ends with its node and serves until then: pods of DaemonSets do.
func stays(p *corev1.Pod) bool {
	return ofDaemonSet(p) && p.Namespace != v1alpha1.SystemNamespace && p.DeletionTimestamp.IsZero() && p.Status.Phase == corev1.PodRunning
}

// leave has pods that end with a node leave their Services first.
//
// A DaemonSet makes no second pod on the tainted node, unless it tolerates the taint. Then the pod
// keeps the labels of the DaemonSet's selector; RP3209 says when it cannot leave.
func (l live) leave(name string) engine.Step {
	var stuck []string
	return &engine.Write{
		Name: "leave/" + name, About: "Have pods of DaemonSets on node " + name + " leave their Services",
		Holds: func(ctx context.Context) error {
			can, _, err := l.toLeave(ctx, name)
			if err != nil {
				return err
			}
			for i := range can {
				return engine.NotYet("pod %s/%s is in its Services", can[i].Namespace, can[i].Name)
			}
			return l.left(ctx, name)
		},
		Write: func(ctx context.Context) error {
			can, no, err := l.toLeave(ctx, name)
			if err != nil {
				return err
			}
			stuck = no
			for i := range can {
				keep, err := l.keeps(ctx, &can[i])
				if err == nil {
					err = l.leaver().Leave(ctx, &can[i], keep...)
				}
				if client.IgnoreNotFound(err) != nil {
					return err
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			all, err := leaving.Changes("*", "* of DaemonSets on node "+name)
			return slices.DeleteFunc(all, func(c engine.Change) bool { return c.Verb == "delete" }), err
		},
		Remark: func() string {
			if len(stuck) == 0 {
				return ""
			}
			return fmt.Sprintf("in their Services until node %s ends: %s", name, strings.Join(stuck[:min(len(stuck), 8)], ", "))
		},
	}
}

// toLeave are the pods of a node that can leave their Services, and the names of those that cannot.
func (l live) toLeave(ctx context.Context, node string) (can []corev1.Pod, stuck []string, err error) {
	pods, err := l.pods(ctx, node)
	if err != nil {
		return nil, nil, err
	}
	for i := range pods {
		if !stays(&pods[i]) {
			continue
		}
		services, err := l.leaver().Services(ctx, &pods[i])
		if err != nil {
			return nil, nil, err
		}
		if len(services) == 0 {
			continue
		}
		keep, err := l.keeps(ctx, &pods[i])
		if err != nil {
			return nil, nil, err
		}
		err = l.leaver().Can(ctx, &pods[i], keep...)
		var no *leaving.StuckError
		switch {
		case errors.As(err, &no):
			stuck = append(stuck, no.Pod.String())
		case err != nil:
			return nil, nil, err
		default:
			can = append(can, pods[i])
		}
	}
	return can, stuck, nil
}

// keeps are the selectors that must go on matching a pod, so that its DaemonSet makes no other.
func (l live) keeps(ctx context.Context, p *corev1.Pod) ([]labels.Selector, error) {
	all := &appsv1.DaemonSetList{}
	if err := l.Cluster.List(ctx, all, client.InNamespace(p.Namespace)); err != nil {
		return nil, fmt.Errorf("daemonsets in %s: %w", p.Namespace, err)
	}
	return kept(p, all.Items, l.spec.Name), nil
}

// kept is the selector of a pod's DaemonSet, if that tolerates the taint of nodes that leave.
func kept(p *corev1.Pod, all []appsv1.DaemonSet, migration string) []labels.Selector {
	for i := range all {
		d := &all[i]
		if !metav1.IsControlledBy(p, d) {
			continue
		}
		taint := leavingTaint(migration, corev1.TaintEffectNoSchedule)
		selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		tolerates := workload.Tolerates(d.Spec.Template.Spec.Tolerations, &taint) || workload.Tolerates(p.Spec.Tolerations, &taint)
		if err == nil && tolerates {
			return []labels.Selector{selector}
		}
	}
	return nil
}

func (l live) marked(ctx context.Context, node string) ([]corev1.Pod, error) {
	all, err := l.pods(ctx, node)
	return slices.DeleteFunc(all, func(p corev1.Pod) bool { return !leaving.Marked(&p, l.spec.Name) }), err
}

func (l live) left(ctx context.Context, node string) error {
	pods, err := l.marked(ctx, node)
	if err != nil {
		return err
	}
	for i := range pods {
		if err := l.leaver().Left(ctx, &pods[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l live) part(name string) engine.Step {
	return &engine.Write{
		Name: "part/" + name, About: "Remove the records of pods that left their Services on node " + name, As: engine.RoleOwn,
		Write: func(ctx context.Context) error {
			pods, err := l.marked(ctx, name)
			if err != nil {
				return err
			}
			for i := range pods {
				if err := l.leaver().Part(ctx, &pods[i]); err != nil {
					return err
				}
			}
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "EndpointSlice */* of pods on node " + name}),
	}
}

// comeBack returns pods to their Services, and the node to load balancers and agents.
func (l live) comeBack(name string) engine.Step {
	return &engine.Write{
		Name: "return/" + name, About: "Have pods on node " + name + " back in their Services",
		Holds: func(ctx context.Context) error {
			pods, err := l.marked(ctx, name)
			if err != nil {
				return err
			}
			for i := range pods {
				return engine.NotYet("pod %s/%s is not in its Services", pods[i].Namespace, pods[i].Name)
			}
			n, err := cordon.Read(ctx, l.Cluster, name)
			if err == nil && n != nil && setApart(n) {
				return engine.NotYet("node %s has labels that keep load balancers or agents away", name)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			pods, err := l.marked(ctx, name)
			if err != nil {
				return err
			}
			for i := range pods {
				if err := l.leaver().Restore(ctx, &pods[i]); client.IgnoreNotFound(err) != nil {
					return err
				}
			}
			return l.patchNode(ctx, name, bringBack)
		},
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "Node " + name, Body: labelBody(corev1.LabelNodeExcludeBalancers, nil)},
			engine.Change{Verb: "patch", Object: "Pod */* on node " + name},
			engine.Change{Verb: "delete", Object: "EndpointSlice */* of pods on node " + name},
		),
	}
}

// setApart reports whether a node has labels that replumb sets on one that is about to end.
func setApart(n *corev1.Node) bool {
	return n.Labels[corev1.LabelNodeExcludeBalancers] == excludedByUs || n.Labels[v1alpha1.LabelAgents] == v1alpha1.HostAgent
}

func bringBack(n *corev1.Node) {
	if n.Labels[corev1.LabelNodeExcludeBalancers] == excludedByUs {
		delete(n.Labels, corev1.LabelNodeExcludeBalancers)
	}
	if n.Labels[v1alpha1.LabelAgents] == v1alpha1.HostAgent {
		delete(n.Labels, v1alpha1.LabelAgents)
	}
}
