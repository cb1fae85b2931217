package proxy

import (
	"context"
	"fmt"
	"net"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/network/servicetrial"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// label writes on a Node who leads to Services there; nothing is kube-proxy alone, as it was.
func (p planner) label(name, value string, d engine.Direction) engine.Step {
	about := map[string]string{
		v1alpha1.ProxyBeside:   "Have Cilium and kube-proxy lead to Services on node " + name,
		v1alpha1.ProxyLeaving:  "Keep kube-proxy off node " + name,
		v1alpha1.ProxyReplaced: "Record that Cilium alone leads to Services on node " + name,
		"":                     "Remove the mark of who leads to Services from node " + name,
	}[value]
	id := value
	if value == "" {
		id = "none"
	}
	return cordon.NodeMark{
		ID: "mark/" + id + "/" + name, About: about, Node: name, Key: v1alpha1.LabelKubeProxy, Value: value,
		Further: func(have string) bool { // an earlier run got further
			return d == engine.Forward && value == v1alpha1.ProxyBeside && have == v1alpha1.ProxyLeaving
		},
	}.Step(p.Deps.Cluster)
}

// keepOff keeps kube-proxy off the nodes that are marked, and letOn lets it on every node that it
// was let on before.
func (p planner) keepOff(set *appsv1.DaemonSet) engine.Step {
	about := "Have kube-proxy leave nodes where it is replaced: " + daemonset.Name(set)
	return daemonset.KeepOff(p.Deps.Cluster, set, "keep-off", about, podnetwork.KeepOff)
}

func (p planner) letOn(set *appsv1.DaemonSet) engine.Step {
	return daemonset.LetOn(p.Deps.Cluster, set, "let-on", "Let kube-proxy on nodes as before: "+daemonset.Name(set))
}

func (p planner) proxyReady(set *appsv1.DaemonSet) engine.Step {
	return daemonset.Settled(p.Deps.Cluster, set, "settled", "kube-proxy")
}

func (p planner) proxyGone(node string) engine.Step {
	return daemonset.Gone(p.Deps.Cluster, "proxy-gone", "kube-proxy", node, p.proxy.ProxySets...)
}

func (p planner) proxyThere(node string) engine.Step {
	return daemonset.There(p.Deps.Cluster, "proxy-there", "kube-proxy", node, p.proxy.ProxySets...)
}

// restartAgent has Cilium's agent of a node start again, unless it does the work of kube-proxy
// already, or does not, as is wanted. health is where it has to say that it is well, in place of
// kube-proxy; empty is nowhere.
func (p planner) restartAgent(node string, does bool, health string) engine.Step {
	args := []string{"--socket=" + taskpod.HostRoot + "/run/cilium/cilium.sock"}
	prefix, title := "replace", "Have Cilium's agent on node "+node+" do the work of kube-proxy"
	switch {
	case health != "":
		_, port, _ := net.SplitHostPort(health)
		args = append(args, "--healthz="+net.JoinHostPort("localhost", port))
		prefix, title = "health", "Have Cilium's agent on node "+node+" say that it is well at "+health
	case !does:
		prefix, title = "release", "Have Cilium's agent on node "+node+" leave Services to kube-proxy"
	}
	s := &restartStep{Step: p.OnNode(nodepod.VerbCilium, node, prefix, title, args...), does: does, health: health}
	s.Limit = daemonset.RolloutTime
	if set := p.proxy.Manifests.DaemonSet(); set != nil {
		s.set = *set
	}
	s.Further = []engine.Change{{Verb: "delete", Object: fmt.Sprintf("Pod %s/%s-* on Node %s", s.set.Namespace, s.set.Name, node)}}
	return s
}

// restartStep asks Cilium's agent of a node, and ends its pod where the answer is not what is
// wanted: the next one has read its configuration as it is by then.
type restartStep struct {
	*nodepod.Step
	set    appsv1.DaemonSet
	does   bool
	health string
	// ended is the pod that this run has ended: its successor is not ended as well if it says the
	// same.
	ended string
}

func (s *restartStep) Verify(ctx context.Context) error {
	r, err := s.Outcome(ctx)
	if err != nil {
		return err
	}
	agents, err := daemonset.PodsOn(ctx, s.Client, s.Node, s.set)
	if err != nil {
		return err
	}
	if len(agents) != 1 || !agents[0].DeletionTimestamp.IsZero() || !connectivity.Ready(&agents[0]) {
		return s.askAgain(ctx, "node %s has no agent of Cilium that is ready", s.Node)
	}
	older, err := s.askedBefore(ctx, &agents[0])
	if err != nil {
		return err
	}
	switch name := agents[0].Name; {
	case older:
		return s.askAgain(ctx, "agent %s on node %s was not asked yet", name, s.Node)
	case s.satisfied(r):
		return s.End(ctx)
	case len(r.Problems) > 0:
		return s.askAgain(ctx, "agent %s on node %s: %s", name, s.Node, r)
	case s.ended != "" && s.ended != name:
		return fmt.Errorf("agent %s on node %s has started again, and says: %s", name, s.Node, r)
	}
	s.ended = agents[0].Name
	uid := agents[0].UID
	if err := s.Client.Delete(ctx, &agents[0], client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("ending pod %s: %w", s.ended, err)
	}
	return s.askAgain(ctx, "agent %s on node %s starts again", s.ended, s.Node)
}

// askAgain asks later: the answer that there is, is not about the agent that is meant.
func (s *restartStep) askAgain(ctx context.Context, format string, args ...any) error {
	if err := s.Start(ctx); err != nil {
		return err
	}
	return engine.NotYet(format, args...)
}

// askedBefore reports whether the pod that asks may be older than the agent, by times of whole
// seconds: another agent may have answered it.
func (s *restartStep) askedBefore(ctx context.Context, agent *corev1.Pod) (bool, error) {
	asking, err := s.Find(ctx)
	if err != nil || len(asking) == 0 {
		return true, err
	}
	return !asking[len(asking)-1].CreationTimestamp.After(agent.CreationTimestamp.Time), nil
}

func (s *restartStep) satisfied(r *nodecleanup.TracesReport) bool {
	return slices.Contains(r.Found, nodecleanup.Replaces(s.does)) &&
		(s.health == "" || slices.Contains(r.Found, nodecleanup.HealthzAnswers))
}

func (p planner) proof(node string, d engine.Direction) engine.Step {
	ask, prefix, title := servicetrial.Replaced, "services", "Verify that Cilium alone leads to Services on node "+node
	guide := fmt.Sprintf("Stop kube-proxy on node %s so that it does not start again, and leave its rules as they are (no --cleanup). "+
		"replumb goes on by itself.", node)
	if d == engine.Backward {
		ask, prefix, title = servicetrial.Programmed, "services-back", "Verify that kube-proxy leads to Services on node "+node
		guide = fmt.Sprintf("Start kube-proxy on node %s again. replumb goes on by itself.", node)
	}
	s := &servicetrial.Step{ReadOnly: nodepod.ReadOnly{Step: p.OnNode(nodepod.VerbServices, node, prefix, title)}, Ask: ask}
	if len(p.proxy.ProxySets) > 0 {
		return s
	}
	s.Limit = p.Spec().GateWait
	return gatedProof{s, guide}
}

// gatedProof waits for the operator.
type gatedProof struct {
	*servicetrial.Step
	guide string
}

func (gatedProof) Role() engine.StepRole { return engine.RoleGate }

func (g gatedProof) Guide() string { return g.guide }

func (p planner) removeConfig(o *unstructured.Unstructured) engine.Step {
	have := func(ctx context.Context) (*unstructured.Unstructured, error) {
		return p.Deps.Get(ctx, o.GroupVersionKind(), client.ObjectKeyFromObject(o))
	}
	return &engine.Write{
		Name: "forget/" + manifests.KeyOf(o).Slug(), About: "Delete " + manifests.KeyOf(o).String(),
		Holds: func(ctx context.Context) error {
			found, err := have(ctx)
			if err == nil && found != nil {
				return engine.NotYet("%s is still there", manifests.KeyOf(o))
			}
			return err
		},
		Write: func(ctx context.Context) error {
			found, err := have(ctx)
			if err != nil || found == nil {
				return err
			}
			return client.IgnoreNotFound(p.Deps.Any.Delete(ctx, found))
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "delete", Object: manifests.KeyOf(o).String()}}, nil
		},
	}
}

func asObject(ds *appsv1.DaemonSet) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DaemonSet"))
	o.SetNamespace(ds.Namespace)
	o.SetName(ds.Name)
	o.SetUID(ds.UID)
	return o
}
