package noderanges

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// With ipam: multi-pool the operator follows what a CiliumNode says that it has of a pool, as long
// as the pool has it, and adds what the node asks for beyond (AllocateToNode in
// operator/pkg/ipam/allocator/multipool). An agent writes there what it has itself, at least once
// a minute, and gives up a range without addresses of which it needs none
// (pkg/ipam/multipool_manager.go). So a range lasts once the agent has started with it.

// podPool makes the steps that change a CiliumPodIPPool.
type podPool struct {
	tools migration.Deps
	nodes *Inventory
}

func (p podPool) name() string   { return p.nodes.Cilium.Pool.Name }
func (p podPool) object() string { return "CiliumPodIPPool " + p.name() }

func (p podPool) get(ctx context.Context) (*ciliumipam.PodPool, error) {
	pool, err := ciliumipam.GetPool(ctx, p.tools.Cluster, p.name())
	if err == nil && pool == nil {
		err = fmt.Errorf("ciliumpodippool %s is gone", p.name())
	}
	return pool, err
}

// former are ranges that the pool had before, without the target, if somebody took the note off.
func (p podPool) former(pool *ciliumipam.PodPool) []netip.Prefix {
	return without(pool.Former(), p.nodes.Spec.To)
}

// during are the ranges while nodes move: the operator gives what nodes need of the first one.
func (p podPool) during(pool *ciliumipam.PodPool, d engine.Direction) []netip.Prefix {
	if d == backward {
		return slices.Concat(p.former(pool), p.nodes.Spec.To)
	}
	return slices.Concat(p.nodes.Spec.To, p.former(pool))
}

// after are the ranges once nothing has an address of those that were left.
func (p podPool) after(pool *ciliumipam.PodPool, d engine.Direction) []netip.Prefix {
	if d == backward {
		return p.former(pool)
	}
	return slices.Concat(p.nodes.Spec.To, without(p.former(pool), p.nodes.Spec.From))
}

// without are ranges that are in none of others.
func without(all, others []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(r netip.Prefix) bool {
		return slices.ContainsFunc(others, func(o netip.Prefix) bool { return nodeipam.Within(o, r) })
	})
}

// offer has the pool have both ranges, and notes which pods of the operator have not seen it so.
func (p podPool) offer(d engine.Direction) engine.Step {
	read := func(ctx context.Context) (*ciliumipam.PodPool, error) {
		pool, err := p.get(ctx)
		if err == nil && (pool.Note == nil || !slices.Equal(pool.Ranges, p.during(pool, d))) {
			err = engine.NotYet("ciliumpodippool %s has %s", pool.Name, strings.Join(podmove.Texts(pool.Ranges), ", "))
		}
		return pool, err
	}
	now := podmove.Texts(p.during(p.nodes.Cilium.Pool, d))
	return &engine.Observed[*ciliumipam.PodPool]{
		Name: "pool/config", About: fmt.Sprintf("Set the ranges of %s to %s", p.object(), strings.Join(now, ", ")),
		As: engine.RoleMove, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, pool *ciliumipam.PodPool) error {
			if pool == nil {
				return errors.New(p.object() + " is gone")
			}
			pods, err := operatorPods(ctx, p.tools.Cluster)
			if err != nil {
				return err
			}
			note := &ciliumipam.PoolNote{Ranges: p.former(pool)}
			for i := range pods {
				note.Operators = append(note.Operators, pods[i].UID)
			}
			return pool.Set(ctx, p.tools.Cluster, p.during(pool, d), note)
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: p.object(), Body: poolBody(now)}),
	}
}

func poolBody(cidrs []string) map[string]any {
	return map[string]any{"spec": map[string]any{"ipv4": map[string]any{"cidrs": cidrs}}}
}

// restartOperator ends pods of the operator that had the ranges in their former order. One that
// runs appends a range that it had not.
func (p podPool) restartOperator() engine.Step {
	ended := map[types.UID]bool{}
	read := func(ctx context.Context) ([]corev1.Pod, error) {
		pool, err := p.get(ctx)
		if err != nil {
			return nil, err
		}
		pods, err := operatorPods(ctx, p.tools.Cluster)
		if err != nil {
			return nil, err
		}
		before := func(pod corev1.Pod) bool { return pool.Note != nil && slices.Contains(pool.Note.Operators, pod.UID) }
		if slices.ContainsFunc(pods, before) {
			return slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return !before(pod) || ended[pod.UID] }),
				engine.NotYet("Cilium's operator has not restarted")
		}
		return nil, serving(pods)
	}
	return &engine.Observed[[]corev1.Pod]{
		Name: "pool/operator", About: "Restart Cilium's operator, which gives further ranges of the pool in its order then", Limit: agentTime,
		As: engine.RoleMove, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write:   func(ctx context.Context, pods []corev1.Pod) error { return endPods(ctx, p.tools.Cluster, pods, ended) },
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "Pod kube-system/* of Cilium's operator"}),
	}
}

// settle has the pool without the ranges that were left, and without a note.
func (p podPool) settle(d engine.Direction) engine.Step {
	read := func(ctx context.Context) (*ciliumipam.PodPool, error) {
		pool, err := ciliumipam.GetPool(ctx, p.tools.Cluster, p.name())
		if err == nil && pool != nil && pool.Note != nil {
			err = engine.NotYet("ciliumpodippool %s has a note of its former ranges", pool.Name)
		}
		return pool, err
	}
	then := podmove.Texts(p.after(p.nodes.Cilium.Pool, d))
	return &engine.Observed[*ciliumipam.PodPool]{
		Name: "tidy/pool", About: fmt.Sprintf("Set the ranges of %s to %s", p.object(), strings.Join(then, ", ")), As: engine.RoleOwn,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, pool *ciliumipam.PodPool) error {
			return pool.Set(ctx, p.tools.Cluster, p.after(pool, d), nil)
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: p.object(), Body: poolBody(then)}),
	}
}
