package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/etcd"
)

// oldNodesEmpty verifies that nothing is left on old nodes.
func (l live) oldNodesEmpty() engine.Step {
	return &engine.Wait{
		Name: "verify/empty", About: "Verify that old nodes have no pods", Again: true,
		For: func(ctx context.Context) error {
			now, err := l.survey(ctx)
			if err != nil {
				return err
			}
			for _, n := range now.OldNodes() {
				switch stage := n.Stage(); {
				case stage != StageServing && stage != StageClosed:
				case len(n.Pods) > 0:
					return engine.NotYet("node %s still has pod %s/%s", n.Name, n.Pods[0].Namespace, n.Pods[0].Name)
				default:
					return engine.NotYet("node %s takes new pods", n.Name)
				}
			}
			return nil
		},
	}
}

// controlPlaneMoved verifies that nothing of the control plane is left in the old network.
func (l live) controlPlaneMoved(members, events *etcd.Client) engine.Step {
	return &engine.Wait{
		Name: "verify/control-plane", About: "Verify that the control plane has left the old network", Again: true,
		For: func(ctx context.Context) error {
			for _, c := range []*etcd.Client{members, events} {
				if err := l.membersMoved(ctx, c); err != nil {
					return err
				}
			}
			servers, err := l.apiServers(ctx)
			if err != nil {
				return err
			}
			for _, a := range servers {
				if slices.ContainsFunc(l.spec.Old.CIDRs, func(c netip.Prefix) bool { return c.Contains(a.Addr()) }) {
					return engine.NotYet("the API server at %s is still an endpoint of service default/kubernetes", a)
				}
			}
			return nil
		},
	}
}

// membersMoved fails if a member of an etcd that moves is in the old network.
func (l live) membersMoved(ctx context.Context, members *etcd.Client) error {
	if members == nil || l.spec.external() {
		return nil
	}
	now, err := members.Load(ctx)
	if err != nil {
		return err
	}
	for i := range now.Members {
		if at := within(now.Members[i].PeerURLs, l.spec.Old.CIDRs); at.IsValid() {
			return fmt.Errorf("etcd member %s is still at %s", now.Members[i].Called(), at)
		}
	}
	return nil
}
