package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// join waits for so many ready new nodes, and has the action create them, if there is one.
func (l live) join(want int) engine.Step {
	about := english.Plural(want, "new node", "")
	request := l.request(actionProvision)
	request.Count = want
	return outside{
		id: "join", title: "Wait for " + about + " to join", wait: l.spec.GateWait, action: l.spec.Join.Provision, request: request,
		guide: fmt.Sprintf("Create %s in the new network and join %s to the cluster. replumb goes on by itself.",
			about, english.PluralWord(want, "it", "them")),
		fill: l.tellGroups,
		done: func(ctx context.Context) error { return l.joined(ctx, want) },
	}.step()
}

// tellGroups tells who makes nodes which kinds there are now, and what has to find a place.
func (l live) tellGroups(ctx context.Context, r *Request) error {
	now, err := loader{l}.load(ctx)
	if err == nil {
		r.Groups = now.Groups()
	}
	return err
}

// joined looks for new nodes. One in the wrong network is an error.
func (l live) joined(ctx context.Context, want int) error {
	now := &Inventory{Spec: l.spec}
	if err := (loader{l}).nodesAndPods(ctx, now); err != nil {
		return err
	}
	for i := range now.Nodes {
		if n := &now.Nodes[i]; l.spec.New.Has(n) && len(addresses(n)) > 0 {
			if problem := l.spec.New.WrongNetwork(n); problem != "" {
				return errors.New(problem)
			}
		}
	}
	ready := now.ReadyNewNodes()
	if len(ready) >= want {
		return nil
	}
	for _, n := range now.NewNodes() {
		if !inventory.NodeReady(n) {
			return engine.NotYet("%d of %d new nodes take pods; node %s is not ready: %s", len(ready), want, n.Name, whyNotReady(n))
		}
	}
	return engine.NotYet("%d of %d new nodes take pods", len(ready), want)
}

func whyNotReady(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return strings.TrimSpace(c.Reason + " " + c.Message)
		}
	}
	return "its kubelet has not reported"
}

func (l live) hasRoom() engine.Step {
	return &engine.Wait{
		Name: "room", About: "Verify that all pods of old nodes fit on the new nodes", Again: true,
		For: func(ctx context.Context) error {
			now, err := loader{l}.load(ctx)
			if err != nil {
				return err
			}
			misfits := now.Room()
			if len(misfits) == 0 {
				return nil
			}
			m, more := misfits[0], ""
			if len(misfits) > 1 {
				more = fmt.Sprintf(", and %d pods more", len(misfits)-1)
			}
			return fmt.Errorf("there is no place for pod %s/%s (%s)%s", m.Pod.Namespace, m.Pod.Name, m.Reasons, more)
		},
	}
}

// fits proves that volumes can follow and policies let the new nodes in, now that they are there.
func (l live) fits() engine.Step {
	return &engine.Wait{
		Name: "fit", About: "Verify that volumes of old nodes can be on new ones, and that policies treat both the same", Again: true,
		For: func(ctx context.Context) error {
			now, err := loader{l}.load(ctx)
			if err != nil {
				return err
			}
			if all := now.stuck(); len(all) > 0 {
				return fmt.Errorf("pod %s/%s: %s", all[0].pod.Namespace, all[0].pod.Name, all[0].why)
			}
			if all := now.uneven(); len(all) > 0 {
				return fmt.Errorf("%s treats old and new nodes differently: %s names %s", all[0].Object, all[0].Field, all[0].Value)
			}
			return nil
		},
	}
}

// maxOldPeers is how many old nodes the new ones are tested against.
const maxOldPeers = 3

// connectivityStep tests the new nodes. Which ones there are is known only when its turn comes.
func (l live) connectivityStep() engine.Step {
	return engine.Interruptible{Write: &engine.Write{
		Name: "canary", About: "Test connectivity between new and old nodes",
		As: engine.RoleOwn, Limit: l.connectivityTest(nil).Deadline(),
		Write: func(ctx context.Context) error {
			now, err := loader{l}.load(ctx)
			if err != nil {
				return err
			}
			var on []string
			for _, n := range now.ReadyNewNodes() {
				on = append(on, n.Name)
			}
			peers := 0
			for _, n := range now.OldNodes() {
				if n.Node != nil && inventory.NodeReady(n.Node) && peers < maxOldPeers {
					on, peers = append(on, n.Name), peers+1
				}
			}
			return engine.Drive(ctx, l.connectivityTest(on))
		},
		Changes: engine.Shows(
			engine.Change{Verb: "create", Object: "NetworkPolicy " + v1alpha1.SystemNamespace + "/canary-*"},
			engine.Change{
				Verb: "run", Object: "Pod " + v1alpha1.SystemNamespace + "/canary-*",
				Body: map[string]any{"image": l.image().Name, "on": "new and old nodes"},
			},
		),
	}}
}

func (l live) connectivityTest(on []string) *connectivity.Step {
	return &connectivity.Step{
		Cluster: l.Cluster, Migration: l.spec.Name, Name: "canary",
		About: "Test connectivity between new and old nodes", Image: l.image(),
		Targets: append(slices.Clone(l.spec.Canary.Targets), "kubernetes.default.svc:443"), Only: on, Unfenced: true,
	}
}
