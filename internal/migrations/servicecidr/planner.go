package servicecidr

import (
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/network/overlapset"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Planner makes plans from a inventory.
type Planner struct {
	migration.Base
	// Probe asks nodes what they know, Inspector API servers how they run.
	Probe     bridge.NodeProbe
	Inspector ranges.Inspector
	Inventory *services.Inventory
	// Forms are those of new bridges by namespace, Form is that of all others.
	Forms     map[string]v1alpha1.BridgeForm
	Form      v1alpha1.BridgeForm
	CanFreeze bool
	// KeepType keeps the type of Services that keep their address as a load balancer's; nil, if
	// none does or there can be no such policy.
	KeepType *freeze.KeepType
	// Cilium says that it does the work of kube-proxy.
	Cilium bool
	Origin inventory.Origin
	// Kubeadm passes gates that replumb passes itself; nil, if it passes none.
	Kubeadm *kubeadmgate.Gates
	// Agents prove on every node what goes on; nil if there are none.
	Agents  *lossguard.Agents
	Overlap *overlapset.Set
	// OverlapWell says that it is alive, as far as the user may see.
	OverlapWell bool
	// Store is where API servers keep the Services that move by etcd; nil, if none does.
	Store exchange.Store
	// Relayed is Store, if it goes through a pod on a control plane; RelayLeft removes one that an
	// earlier run has left, nil if there is none.
	Relayed   *exchange.Etcd
	RelayLeft engine.Step
	// Leftovers takes away what an earlier run has left of agents, and of Overlap.
	Leftovers    []engine.Group
	OnMove       func(migration.Move)
	Stranded     *strandings
	LeaveClients bool
	// CreatedDuring are the Services which a rollback moves to the old range.
	CreatedDuring []CreatedDuring
	// Refresh is what has to be restarted for pods to get rid of old addresses.
	Refresh Refresh

	// tracker has what the steps of a run have written of each Service.
	tracker   hop.Tracker
	returning *cidr.Allocator
}

func (p *Planner) spec() services.Spec { return p.Inventory.Spec }

func (p *Planner) frozen() bool {
	return p.CanFreeze && p.spec().Common.Freeze != v1alpha1.FreezeDisabled && p.spec().Mode != v1alpha1.ModeExtend
}

func (p *Planner) freeze() *freeze.Step {
	return &freeze.Step{Client: p.Tools.Client(), Migration: p.spec().Name}
}

func (p *Planner) pool(to engine.Direction) *cidr.Allocator {
	if p.Inventory.Bitmap && to == engine.Backward {
		if p.returning == nil {
			p.returning = returnPool(p.Inventory)
		}
		return p.returning
	}
	return p.Inventory.Pool
}

// returnPool has the free addresses of the old range, also for replumb's own use on the way back.
func returnPool(s *services.Inventory) *cidr.Allocator {
	pool := cidr.NewPool(s.Spec.From, s.Used)
	for _, e := range s.All() {
		if e.Old.IsValid() { // where it returns to
			pool.Use(e.Old)
		}
	}
	return pool
}

const parallel = 32

// barriers of a way back stop for nothing that agents report, or do not report.
func (p *Planner) barriers(to engine.Direction) *hop.Barriers {
	b := &hop.Barriers{
		Client: p.Tools.Client(), Migration: p.spec().Name, Pool: p.pool(to),
		Mode: p.spec().Barrier, Wait: p.spec().BarrierWait, Limit: max(time.Minute, p.spec().BarrierWait), Now: p.Tools.Now,
		Also: p.Inventory.OtherFamily(),
	}
	health := bridge.HealthChecks{Probe: p.Probe}
	back := to == engine.Backward
	switch {
	case p.Cilium && p.Agents != nil:
		b.Agents, b.Witness, b.Connect = p.Agents.Watch, p.Agents.Watch, true
	case p.Agents == nil || b.Mode != v1alpha1.BarrierAgent && b.Mode != "":
		b.Witness = health
	case back:
		b.Agents, b.Witness = p.Agents.Watch, bridge.Either{First: p.Agents.Watch, Second: health}
	default:
		b.Agents, b.Witness = p.Agents.Watch, p.Agents.Watch
	}
	if p.Agents != nil && !back { // an agent that is silent is reported as that, and not as a kube-proxy that is slow
		b.Limit = max(b.Limit, p.Agents.Wait+moreThanSilence)
	}
	return b
}

// moreThanSilence makes barriers more patient than the watch for silent agents.
const moreThanSilence = 30 * time.Second

func (p *Planner) steps(to engine.Direction) *hop.Steps {
	made := hop.Steps{
		Client:     p.Tools.Client(),
		Migration:  p.spec().Name,
		Domain:     p.spec().Domain,
		Form:       p.Form,
		Forms:      p.Forms,
		Labels:     p.spec().BridgeLabels,
		Pool:       p.pool(to),
		Within:     slices.Concat(p.spec().From, p.spec().To),
		Barriers:   p.barriers(to),
		Now:        p.Tools.Now,
		Strategies: p.spec().Strategies,
		Store:      p.Store,
		OnMove:     p.OnMove,
		Tracker:    &p.tracker,
	}
	if p.Stranded != nil {
		made.OnStranded = p.Stranded.add
	}
	return hop.NewSteps(made)
}

func bornAfter(s *services.Inventory, e *services.Entry) bool {
	return !s.Recorded.IsZero() && s.Recorded.Before(&e.Service.CreationTimestamp)
}

// endless reports whether a Service has appeared since the record in a range that stays open: apply
// waits for none of these.
func endless(s *services.Inventory, e *services.Entry) bool {
	return bornAfter(s, e) && slices.ContainsFunc(s.Ranges, func(c networkingv1.ServiceCIDR) bool {
		return c.DeletionTimestamp.IsZero() && !ranges.IsRetired(s, &c) && cidr.Contains(services.CIDRsOf(&c), e.Old)
	})
}
