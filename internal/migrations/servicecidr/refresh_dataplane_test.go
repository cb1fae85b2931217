package servicecidr

import (
	"slices"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/spec/tier"
)

// TestDataPlanesAreRestartedAlone: nothing else rolls while the data plane of nodes does.
func TestDataPlanesAreRestartedAlone(t *testing.T) {
	rules, err := tier.NewRules(&v1alpha1.MigrationSpec{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	inventory := &services.Inventory{Tiers: tier.Assign(nil, rules, nil).Order}
	state := &rollout.State{}
	r := refresher{inventory: inventory, rules: rules, workloads: state, before: services.NewByWorkload(inventory, state)}
	workload := func(kind, name string, plane bool) rollout.Workload {
		return rollout.Workload{Kind: kind, Namespace: "shop", Name: name, DataPlane: plane}
	}
	plan := rollout.RestartPlan{Restarts: []rollout.Workload{
		workload(rollout.KindDeployment, "api", false), workload(rollout.KindDaemonSet, "calico-node", true),
		workload(rollout.KindDaemonSet, "cilium", true), workload(rollout.KindDeployment, "web", false),
	}}
	var sizes []string
	for _, each := range r.tiers(rollout.Deps{}, plan, rollout.Changes{}) {
		for _, group := range each.Groups {
			for _, step := range group {
				sizes = append(sizes, step.ID())
			}
			sizes = append(sizes, "|")
		}
	}
	want := []string{"restart/DaemonSet/shop/calico-node", "|", "restart/DaemonSet/shop/cilium", "|"}
	if len(sizes) != 7 || !slices.Equal(sizes[:4], want) || sizes[6] != "|" {
		t.Errorf("it restarts %s", lists.FirstN(sizes, 10))
	}
}
