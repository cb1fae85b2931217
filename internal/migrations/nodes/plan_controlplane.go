package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

// controlPlane makes the steps that move the nodes of the control plane.
type controlPlane struct {
	*drainer
	etcd   *etcd.Client
	survey *Inventory
	// events is the second etcd; nil, if there is none that moves.
	events *etcd.Client
}

func (cp *controlPlane) groups(records []*dnsrecords.RecordMove) []engine.Group {
	var groups []engine.Group
	all := cp.survey.ControlPlane().Old()
	for i := range all {
		c := &all[i]
		if c.Stage() == StageGone {
			continue
		}
		add, remove := cp.add(c), cp.remove(c)
		if cp.spec.ControlPlane.Mode == v1alpha1.ControlPlaneReplace {
			add, remove = cp.replace(c), nil
		}
		first := len(groups) == 0
		groups = append(groups, engine.AtOnce(1, c.Name, add...)...)
		if first {
			groups = append(groups, pointToNew(records)...)
		}
		groups = append(groups, engine.AtOnce(1, c.Name, remove...)...)
	}
	if len(groups) == 0 {
		return nil
	}
	return append(engine.InOrder(append(cp.snapshots(), cp.recordAll(all))...), groups...)
}

func (cp *controlPlane) snapshots() []engine.Step {
	if cp.spec.external() {
		return nil
	}
	steps := []engine.Step{cp.etcd.SnapshotStep(cp.spec.SnapshotFile())}
	if cp.events != nil {
		steps = append(steps, cp.events.SnapshotStep(cp.spec.EventsSnapshotFile()))
	}
	return steps
}

func (s *Spec) SnapshotFile() string {
	if file := s.ControlPlane.Etcd.SnapshotFile; file != "" {
		return file
	}
	return s.Name + ".etcd.db"
}

func (s *Spec) EventsSnapshotFile() string {
	if file := s.ControlPlane.EtcdEvents.SnapshotFile; file != "" {
		return file
	}
	return s.Name + ".etcd-events.db"
}

func (cp *controlPlane) recordAll(all []ControlPlaneNode) engine.Step {
	var records []v1alpha1.NodeStatus
	for i := range all {
		records = append(records, all[i].NodeStatus)
	}
	return cp.record().addStep("secure/control-plane", "Record the old control-plane nodes: "+strings.Join(cp.names(), ", "), records)
}

func (cp *controlPlane) names() []string {
	var names []string
	for _, c := range cp.survey.ControlPlane().Old() {
		names = append(names, c.Name)
	}
	return names
}

func (cp *controlPlane) add(c *ControlPlaneNode) []engine.Step {
	steps := cp.healthy("before", c, inTransition(c)...)
	steps = append(steps, cp.provision(c))
	if !cp.spec.external() {
		steps = append(steps, cp.vote(c)...)
	}
	steps = append(steps, cp.eventsVote(c)...)
	steps = append(steps, cp.serves(c))
	steps = append(steps, cp.healthyJoined(c)...)
	if settle := cp.spec.ControlPlane.Settle.Duration; settle > 0 && c.Member {
		steps = append(steps, &migration.PauseStep{
			Name:   "settle/" + c.Name,
			About:  fmt.Sprintf("Give load balancers %s to see the new API server", settle),
			Length: settle, Now: cp.Now,
		})
	}
	return steps
}

func (cp *controlPlane) vote(c *ControlPlaneNode) []engine.Step {
	return []engine.Step{
		cp.memberStep(
			"learner/"+c.Name,
			"Add the etcd of "+c.Name+"'s successor without a vote",
			c,
			func(m *v1alpha1.MemberStatus) engine.Step {
				return cp.etcd.LearnerStep(m.Name, m.PeerURL)
			},
		),
		cp.memberStep("vote/"+c.Name, "Give it its vote once it has caught up", c, func(m *v1alpha1.MemberStatus) engine.Step {
			return cp.etcd.PromotedStep(m.Name, m.PeerURL)
		}),
	}
}

// inTransition are the members without a vote, or ended, when a run is taken up again.
func inTransition(c *ControlPlaneNode) []string {
	if c.Successor == nil {
		return []string{c.Name}
	}
	return []string{c.Name, c.Successor.Name, c.Successor.PeerURL}
}

// remove takes a node out whose successor serves.
func (cp *controlPlane) remove(c *ControlPlaneNode) []engine.Step {
	steps := append(cp.emptied(c), cp.retire(c))
	if !cp.spec.external() {
		steps = append(steps, cp.etcd.HandedOverStep(c.Name, cp.names()...), cp.etcd.RemovedStep(c.Name, cp.survey.ControlPlane().voters()))
	}
	steps = append(steps, cp.eventsRemoved(c)...)
	steps = append(steps, cp.terminate(c))
	return append(steps, cp.healthy("after", c)...)
}

// replace stops a node and has it come back in the new network, under its name and with its data.
func (cp *controlPlane) replace(c *ControlPlaneNode) []engine.Step {
	var known []string
	if c.Successor != nil {
		known = append(known, c.Successor.PeerURL)
	}
	steps := append(cp.healthy("before", c, inTransition(c)...), cp.emptied(c)...)
	steps = append(steps, cp.retire(c), cp.etcd.HandedOverStep(c.Name, cp.names()...), cp.etcd.MayStopStep(c.Name, known...))
	steps = append(steps, cp.eventsMayStop(c)...)
	steps = append(steps, cp.stop(c), cp.provision(c),
		cp.memberStep("address/"+c.Name, "Change the peer URL of "+c.Name+"'s etcd to the one where it comes back", c,
			func(m *v1alpha1.MemberStatus) engine.Step { return cp.etcd.ReaddressedStep(c.Name, m.PeerURL) }))
	steps = append(steps, cp.eventsReaddressed(c)...)
	steps = append(steps, cp.serves(c))
	steps = append(steps, cp.healthy("after", c)...)
	return append(steps, cp.openNode(c.Name), cp.record().returnStep(c.Name))
}

// emptied has pods leave the Node, if there is one: cluster DNS, for instance, may be there.
func (cp *controlPlane) emptied(c *ControlPlaneNode) []engine.Step {
	if !cp.hasNode(c.Name) {
		return nil
	}
	return cp.empty(c.Name)
}

func (cp *controlPlane) hasNode(name string) bool {
	return slices.ContainsFunc(cp.survey.Nodes, func(n corev1.Node) bool { return n.Name == name })
}

func (cp *controlPlane) request(action string, c *ControlPlaneNode) Request {
	r := cp.live.request(action)
	status := c.NodeStatus
	r.Role, r.Node = v1alpha1.RoleControlPlane, &status
	return r
}

func (cp *controlPlane) provision(c *ControlPlaneNode) engine.Step {
	answer := &provisioned{}
	guide := "Create a control-plane node in the new network and join it to the cluster, with its etcd. replumb goes on by itself."
	if cp.spec.external() {
		guide = "Create a control-plane node in the new network and join it to the cluster, with the etcd that there is. " +
			"replumb goes on by itself."
	}
	request := cp.request(actionProvision, c)
	request.Count = 1
	return outside{
		id: "provision/" + c.Name, title: "Wait for a control-plane node that replaces " + c.Name, wait: cp.spec.GateWait,
		action: cp.spec.ControlPlane.Provision, request: request, answer: answer,
		guide: guide,
		after: effect{
			do: func(ctx context.Context) error { return cp.recordSuccessor(ctx, c.Name, answer) },
			changes: func() ([]engine.Change, error) {
				return cp.record().
					preview(v1alpha1.NodeStatus{Name: c.Name, Role: v1alpha1.RoleControlPlane, Successor: unknownMember(c.Name)})
			},
		},
		done: func(ctx context.Context) error { _, err := cp.record().successor(ctx, c.Name); return err },
	}.step()
}

func (cp *controlPlane) retire(c *ControlPlaneNode) engine.Step {
	status := c.NodeStatus
	return outside{
		id:      "retire/" + c.Name,
		title:   "Stop the API server of " + c.Name,
		wait:    cp.spec.GateWait,
		action:  cp.spec.ControlPlane.Retire,
		request: cp.request(actionRetire, c),
		guide: "On " + c.Name + ", move kube-apiserver.yaml out of /etc/kubernetes/manifests (or do what else ends its API server in good order). " +
			"replumb goes on by itself.",
		before: cp.record().ended(status),
		done:   func(ctx context.Context) error { return cp.apiServerStopped(ctx, &status) },
	}.step()
}

func (cp *controlPlane) terminate(c *ControlPlaneNode) engine.Step {
	action := cp.spec.ControlPlane.Terminate
	return outside{
		id: "terminate/" + c.Name, title: "Terminate control-plane node " + c.Name, wait: cp.spec.GateWait,
		action: action, request: cp.request(actionTerminate, c),
		guide: fmt.Sprintf("Nothing needs control-plane node %s any more. Terminate its machine. replumb goes on by itself.", c.Name),
		after: cp.deleteControlPlaneNode(c.Name, action != nil),
		done:  func(ctx context.Context) error { return cp.record().isGone(ctx, c.Name) },
	}.step()
}

func (cp *controlPlane) stop(c *ControlPlaneNode) engine.Step {
	return outside{
		id: "terminate/" + c.Name, title: "Stop control-plane node " + c.Name, wait: cp.spec.GateWait,
		action: cp.spec.ControlPlane.Terminate, request: cp.request(actionTerminate, c),
		guide: "Stop the machine of control-plane node " + c.Name + ", and keep the data of its etcd. replumb goes on by itself.",
		done: func(ctx context.Context) error {
			// The others count it as stopped until they hear of its new address: once is enough.
			if _, err := cp.record().successor(ctx, c.Name); err == nil {
				return nil
			}
			now, err := cp.etcd.Load(ctx)
			if err != nil {
				return err
			}
			m := now.Find(c.Name)
			if m != nil && m.Healthy && !within(m.PeerURLs, cp.spec.New.CIDRs).IsValid() {
				return engine.NotYet("the etcd of control-plane node %s still answers", c.Name)
			}
			return cp.eventsStopped(ctx, c)
		},
	}.step()
}
