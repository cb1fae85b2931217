// Package ranges adds, retires and restores Service ranges, and waits at gates for what operators
// do to certificates, kubelets and API servers.
package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/spec/hook"
)

// RangePlan adds, retires and restores Service ranges.
type RangePlan struct {
	Client    client.Client
	Inventory *services.Inventory
	Servers   APIServers
	Origin    inventory.Origin
	Wait      time.Duration
	Identity  engine.Identity
	// Kubeadm passes gates that are not left to people; nil, if all are.
	Kubeadm *kubeadmgate.Gates
}

func (r *RangePlan) Look() *APIServers {
	servers := r.Servers
	return &servers
}

func (r *RangePlan) own(name string, cidr netip.Prefix, role string) ServiceRange {
	return ServiceRange{Client: r.Client, Migration: r.Inventory.Spec.Name, Name: name, Cidr: cidr, Role: role}
}

func (r *RangePlan) Targets() []ServiceRange {
	var all []ServiceRange
	for i, to := range r.Inventory.Spec.To {
		all = append(all, r.own(RangeName(r.Inventory.Spec, i), to, v1alpha1.RoleRange))
	}
	return all
}

func (r *RangePlan) Kept() []ServiceRange {
	var all []ServiceRange
	for _, k := range r.Inventory.KeepRanges() {
		name := strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(k.String())
		all = append(all, r.own(r.Inventory.Spec.Name+"-keep-"+strings.ReplaceAll(name, "--", "-0-"), k, v1alpha1.RoleKeep))
	}
	return all
}

func (r *RangePlan) reopened() []ServiceRange {
	var all []ServiceRange
	for i, from := range r.Inventory.Spec.From {
		all = append(all, r.own(fmt.Sprintf("%s-reopened-%d", r.Inventory.Spec.Name, i), from, v1alpha1.RoleReopened))
	}
	return all
}

// RangeName is the name of the ServiceCIDR of the i-th target range.
func RangeName(spec services.Spec, i int) string {
	if len(spec.To) == 1 {
		return spec.Name
	}
	return fmt.Sprintf("%s-%d", spec.Name, i)
}

func stepsOf(ranges []ServiceRange, step func(ServiceRange) engine.Step) []engine.Step {
	var steps []engine.Step
	for _, r := range ranges {
		steps = append(steps, step(r))
	}
	return steps
}

// Extend adds the target range.
func (r *RangePlan) Extend() []engine.Group {
	return engine.InOrder(stepsOf(r.Targets(), ServiceRange.Add)...)
}

// Repoint retires ranges; the default one after the API servers have another.
func (r *RangePlan) Repoint() []engine.Group {
	if r.Inventory.Spec.Mode == v1alpha1.ModeExtend {
		return nil
	}
	var vacant, retire []engine.Step
	hasDefault := false
	for _, c := range ToRetire(r.Inventory) {
		hasDefault = hasDefault || c.Name == DefaultRange
		leaves := leavingRanges(r.Inventory, c)
		old := retiredRange{
			client: r.Client, name: c.Name, cidrs: services.CIDRsOf(c), leaves: leaves, kept: r.Inventory.KeepRanges(), immovable: r.Immovable(leaves),
		}
		vacant, retire = append(vacant, old.vacant()), append(retire, old.retire())
	}
	groups := append(engine.InOrder(stepsOf(append(r.Kept(), r.aparts()...), ServiceRange.Add)...), engine.InOrder(vacant...)...)
	was, becomes, moves := DefaultRanges(r.Inventory)
	if hasDefault {
		groups = append(groups, engine.InOrder(r.apiServers(becomes, was, Repointed, false)...)...)
	}
	groups = append(groups, engine.InOrder(retire...)...)
	if hasDefault || (moves && lacksDefault(r.Inventory, becomes)) {
		made := newDefault{client: r.Client, want: becomes, gone: was}
		if len(becomes) == 1 {
			made.want = r.Inventory.Spec.To
		}
		groups = append(groups, engine.InOrder(made.step())...)
	}
	return groups
}

// Reopen opens the old range, and keeps the new one until the last Service has left it.
func (r *RangePlan) Reopen() []engine.Group {
	var groups []engine.Group
	if slices.ContainsFunc(r.Inventory.Moves, (*services.Entry).Begun) {
		groups = r.Extend()
	}
	closed := slices.DeleteFunc(r.reopened(), func(o ServiceRange) bool {
		return slices.ContainsFunc(r.Inventory.Ranges, func(c networkingv1.ServiceCIDR) bool {
			return c.DeletionTimestamp.IsZero() && slices.Contains(services.CIDRsOf(&c), o.Cidr)
		})
	})
	return append(groups, engine.InOrder(stepsOf(closed, ServiceRange.Add)...)...)
}

// Restore gives the API servers their old range back, if they had another. A retired range that is
// no API server's stays open under its new name.
func (r *RangePlan) Restore() []engine.Group {
	var groups []engine.Group
	if was, gone, restores := restoredDefaults(r.Inventory); restores {
		now := currentDefault(r.Inventory)
		never := now != nil && len(without(was, services.CIDRsOf(now))) == 0
		groups = append(groups, engine.InOrder(r.apiServers(was, gone, restored, never)...)...)
		if !never {
			if now != nil {
				gone = services.CIDRsOf(now)
			}
			made := newDefault{client: r.Client, want: was, gone: gone, remove: true}
			groups = append(groups, engine.InOrder(append(stepsOf(r.restoredApart(), ServiceRange.Add), made.step())...)...)
		}
	}
	return append(groups, engine.InOrder(stepsOf(r.reopened(), ServiceRange.HandOver)...)...)
}

// Withdraw removes unused ranges of the migration; one kept apart only once it is there again.
func (r *RangePlan) Withdraw() []engine.Group {
	pinned := slices.DeleteFunc(r.keeping(), r.isApart)
	return append(engine.InOrder(stepsOf(r.leftApart(), ServiceRange.HandOver)...), removal(append(pinned, r.Targets()...))...)
}

// HandOver ends the migration's say over its ranges; unused ones of former pins go.
func (r *RangePlan) HandOver() []engine.Group {
	needed := append(r.Kept(), r.keptApart()...)
	idle := slices.DeleteFunc(r.keeping(), func(k ServiceRange) bool {
		return slices.ContainsFunc(needed, func(n ServiceRange) bool { return n.Name == k.Name })
	})
	return append(engine.InOrder(stepsOf(slices.Concat(r.Targets(), needed), ServiceRange.HandOver)...), removal(idle)...)
}

// removal takes unused ranges away at once, since each waits out the same grace period.
func removal(ranges []ServiceRange) []engine.Group {
	return append(engine.AtOnce(stepsAtOnce, "", stepsOf(ranges, ServiceRange.Withdraw)...),
		engine.AtOnce(stepsAtOnce, "", stepsOf(ranges, ServiceRange.putBack)...)...)
}

func (r *RangePlan) keeping() []ServiceRange {
	var all []ServiceRange
	for i := range r.Inventory.Ranges {
		c := &r.Inventory.Ranges[i]
		if c.Labels[v1alpha1.LabelRole] == v1alpha1.RoleKeep && c.Labels[v1alpha1.LabelMigration] == r.Inventory.Spec.Name {
			all = append(all, r.own(c.Name, services.CIDRsOf(c)[0], v1alpha1.RoleKeep))
		}
	}
	return all
}

// The confirmations of operators, values of v1alpha1.AnnotationAPIServers.
const (
	Repointed = "Repointed"
	restored  = "Restored"
)

// Certificates waits until clients can connect to API servers by both addresses of kubernetes.
func (r *RangePlan) Certificates() []engine.Step {
	kubernetes := r.Inventory.Kubernetes()
	guide := CertificateGuide(r.Origin, kubernetes.Old, kubernetes.New)
	title := fmt.Sprintf("Wait until the certificate of every API server names %s and %s", kubernetes.Old, kubernetes.New)
	servers := r.Look()
	gate := NewGate("certificates", title, guide, r.Wait, servers.Certified(kubernetes.Old, kubernetes.New))
	gate.Remark = servers.Remark
	if r.byKubeadm(v1alpha1.GateCertificates) {
		return r.certify(&gate.Wait, kubernetes.Old, kubernetes.New)
	}
	return []engine.Step{CallAction(gate, r.Inventory.Spec, GateRequest{
		Cluster: r.Identity, Run: hook.Apply, Gate: v1alpha1.GateCertificates, Want: kubernetes.New.String(), Keep: kubernetes.Old.String(),
	})}
}

// apiServers waits until the API servers have ranges in place of others, one of each family they
// serve.
func (r *RangePlan) apiServers(want, other []netip.Prefix, confirmation string, lenient bool) []engine.Step {
	title := fmt.Sprintf("Wait until every API server has %s as --service-cluster-ip-range", FlagText(want))
	servers := r.Look()
	gate := NewGate("api-servers", title, APIServerGuide(r.Origin, want), r.Wait, r.OnRange(servers, want, confirmation, lenient))
	gate.Remark = servers.Remark
	if r.byKubeadm(v1alpha1.GateAPIServers) {
		return r.repoint(&gate.Wait, want, other)
	}
	run := hook.Apply
	if confirmation == restored {
		run = hook.Rollback
	}
	return []engine.Step{
		CallAction(gate, r.Inventory.Spec, GateRequest{Cluster: r.Identity, Run: run, Gate: v1alpha1.GateAPIServers, Want: FlagText(want)}),
	}
}

// OnRange holds once API servers, and the controller managers to be seen, have these ranges.
func (r *RangePlan) OnRange(servers *APIServers, want []netip.Prefix, confirmation string, lenient bool) func(context.Context) error {
	all := onRange{
		servers: servers, migration: r.Inventory.Spec.Name, want: want, confirmation: confirmation, lenient: lenient,
	}
	return func(ctx context.Context) error {
		if err := all.holds(ctx); err != nil {
			return err
		}
		return managersOn(ctx, r.Client, want)
	}
}

// RangeSteps make the steps of the phases that change Service ranges.
type RangeSteps interface {
	Extend() []engine.Group
	Repoint() []engine.Group
	Reopen() []engine.Group
	Restore() []engine.Group
	Withdraw() []engine.Group
	HandOver() []engine.Group
}
