package servicecidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/cidr"
)

func (p *Planner) extend() []engine.Group {
	var steps []engine.Step
	for _, s := range p.rangeSteps() {
		steps = append(steps, s)
	}
	return inOrder(steps...)
}

func (p *Planner) rangeSteps() []*rangeStep {
	var steps []*rangeStep
	for i, r := range p.spec().To {
		steps = append(steps, p.rangeStep(RangeName(p.spec(), i), r, v1alpha1.RoleRange))
	}
	return steps
}

func (p *Planner) rangeStep(name string, cidr netip.Prefix, role string) *rangeStep {
	return &rangeStep{tools: p.Tools, migration: p.spec().Name, name: name, cidr: cidr, role: role}
}

// RangeName is the name of the ServiceCIDR of the i-th target range.
func RangeName(spec Spec, i int) string {
	if len(spec.To) == 1 {
		return spec.Name
	}
	return fmt.Sprintf("%s-%d", spec.Name, i)
}

func (p *Planner) servers() apiServers {
	return apiServers{tools: p.Tools, addresses: p.spec().APIServers}
}

func (p *Planner) certificates() engine.Step {
	want := p.Survey.Kubernetes().New
	return &certificateGate{
		gate: gate{
			id: "certificates", title: fmt.Sprintf("Wait until the certificate of every API server names %s", want),
			guide: certificateGuide(p.Distribution, p.Survey.Kubernetes().Old, want), length: p.spec().GateWait,
		},
		servers: p.servers(), want: want,
	}
}

func (p *Planner) apiServers(want netip.Prefix, confirmation string, lenient bool) engine.Step {
	return &apiServerGate{
		gate: gate{
			id: "api-servers", title: fmt.Sprintf("Wait until every API server has %s as --service-cluster-ip-range", want),
			guide: apiServerGuide(p.Distribution, want), length: p.spec().GateWait,
		},
		servers: p.servers(), migration: p.spec().Name, want: want, confirmation: confirmation, lenient: lenient,
	}
}

// repoint retires what of the old ranges nothing needs any more: the default one after the API servers have another.
func (p *Planner) repoint() []engine.Group {
	if p.spec().Mode == v1alpha1.ModeExtend {
		return nil
	}
	var vacant, retire []engine.Step
	hasDefault := false
	for i := range p.Survey.Ranges {
		c := &p.Survey.Ranges[i]
		if !p.retires(c) {
			continue
		}
		hasDefault = hasDefault || c.Name == defaultRange
		step := &retireStep{tools: p.Tools, name: c.Name, cidrs: cidrsOf(c), kept: p.Survey.KeepRanges()}
		vacant, retire = append(vacant, &vacantStep{of: step}), append(retire, step)
	}
	groups := append(inOrder(p.keep()...), inOrder(vacant...)...)
	was, moves := p.defaultWas()
	if hasDefault {
		groups = append(groups, single(p.apiServers(p.spec().To[0], repointed, false))...)
	}
	groups = append(groups, inOrder(retire...)...)
	if hasDefault || (moves && p.defaultNow() == nil) {
		groups = append(groups, single(&defaultStep{tools: p.Tools, want: p.spec().To, gone: []netip.Prefix{was}})...)
	}
	return groups
}

// goes reports whether a ServiceCIDR, not of replumb's making, lies in what is to be emptied.
func (p *Planner) goes(c *networkingv1.ServiceCIDR) bool {
	return c.Labels[v1alpha1.LabelRole] == "" && len(cidrsOf(c)) > 0 && inside(c, p.spec().From)
}

// retires reports whether a ServiceCIDR goes. One that holds the cluster's own Services, told to stay, does not; who else
// still has an address in it is named when its turn comes.
func (p *Planner) retires(c *networkingv1.ServiceCIDR) bool {
	return p.goes(c) && !slices.ContainsFunc(p.Survey.Blockers(), func(e *Entry) bool {
		return e.Reason == clusterServicesStay && cidr.Contains(cidrsOf(c), e.Old)
	})
}

// keep makes the ranges for pinned Services.
func (p *Planner) keep() []engine.Step {
	var steps []engine.Step
	for _, r := range p.Survey.KeepRanges() {
		steps = append(steps, p.keepStep(r))
	}
	return steps
}

func (p *Planner) keepStep(r netip.Prefix) *rangeStep {
	name := strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(r.String())
	return p.rangeStep(p.spec().Name+"-keep-"+strings.ReplaceAll(name, "--", "-0-"), r, v1alpha1.RoleKeep)
}

// defaultWas is the range that held kubernetes, which is the default one; false, if kubernetes does not move.
func (p *Planner) defaultWas() (was netip.Prefix, moves bool) {
	e := p.Survey.Kubernetes()
	if e == nil {
		return netip.Prefix{}, false
	}
	for _, r := range p.spec().From {
		if r.Contains(e.Old) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}

// defaultNow is the default ServiceCIDR; nil, if it is gone or going.
func (p *Planner) defaultNow() *networkingv1.ServiceCIDR {
	for i := range p.Survey.Ranges {
		if c := &p.Survey.Ranges[i]; c.Name == defaultRange && c.DeletionTimestamp.IsZero() {
			return c
		}
	}
	return nil
}

// reopen makes sure that both ranges are open: addresses are given out again in the old one, and stay legitimate in the
// new one until the last Service has left it.
func (p *Planner) reopen() []engine.Group {
	var groups []engine.Group
	if slices.ContainsFunc(p.Survey.Moves, func(e *Entry) bool { return e.Place != Waiting || e.Touched }) {
		groups = p.extend()
	}
	var steps []engine.Step
	for i, r := range p.spec().From {
		open := slices.ContainsFunc(p.Survey.Ranges, func(c networkingv1.ServiceCIDR) bool {
			return c.DeletionTimestamp.IsZero() && slices.Contains(cidrsOf(&c), r)
		})
		if !open {
			steps = append(steps, p.reopenStep(i, r))
		}
	}
	return append(groups, inOrder(steps...)...)
}

func (p *Planner) reopenStep(i int, r netip.Prefix) *rangeStep {
	return p.rangeStep(fmt.Sprintf("%s-reopened-%d", p.spec().Name, i), r, v1alpha1.RoleReopened)
}

// restore gives the API servers their old range back, if they had been given the new one. A range that was retired and is
// no API server's stays open under the name it was opened with.
func (p *Planner) restore() []engine.Group {
	var groups []engine.Group
	if was, moves := p.defaultWas(); moves && p.Survey.Kubernetes().Touched {
		now := p.defaultNow()
		never := now != nil && slices.Contains(cidrsOf(now), was)
		groups = append(groups, single(p.apiServers(was, restored, never))...)
		if !never {
			gone := p.spec().To
			if now != nil {
				gone = cidrsOf(now)
			}
			groups = append(groups, single(&defaultStep{tools: p.Tools, want: []netip.Prefix{was}, gone: gone, remove: true})...)
		}
	}
	var steps []engine.Step
	for i, r := range p.spec().From {
		steps = append(steps, &handOverStep{of: p.reopenStep(i, r)})
	}
	return append(groups, inOrder(steps...)...)
}

// withdraw removes the ranges that the migration added.
func (p *Planner) withdraw() []engine.Group {
	var steps []engine.Step
	for i := range p.Survey.Ranges {
		c := &p.Survey.Ranges[i]
		if c.Labels[v1alpha1.LabelRole] == v1alpha1.RoleKeep && c.Labels[v1alpha1.LabelMigration] == p.spec().Name {
			steps = append(steps, p.rangeStep(c.Name, cidrsOf(c)[0], v1alpha1.RoleKeep).Undo())
		}
	}
	for _, s := range p.rangeSteps() {
		steps = append(steps, s.Undo())
	}
	return []engine.Group{{Parallel: parallel, Steps: steps}} // each waits out the same grace period
}

// handOver ends the migration's say over the ranges it added.
func (p *Planner) handOver() []engine.Group {
	var steps []engine.Step
	for _, s := range p.rangeSteps() {
		steps = append(steps, &handOverStep{of: s})
	}
	for _, r := range p.Survey.KeepRanges() {
		steps = append(steps, &handOverStep{of: p.keepStep(r)})
	}
	return inOrder(steps...)
}
