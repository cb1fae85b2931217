// Package trials asks API servers by dry runs whether they would take the writes to come.
package trials

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// Trier makes the trials; writes without a right are left to the rights check.
type Trier struct {
	Cluster    *cluster.Cluster
	Inventory  *services.Inventory
	May        func(verb, group, resource string) bool
	Ranges     []ranges.ServiceRange
	Candidates []v1alpha1.BridgeForm

	mu    sync.Mutex
	Found *Trials
}

// Trials are the API server's answers to dry runs of writes to come, and their limits.
type Trials struct {
	// Untried is why no Service was tried; empty if they were, or none had to be.
	Untried string
	// Forms says by namespace why each form that was tried was refused; nil means admitted.
	Forms map[string]map[v1alpha1.BridgeForm]error
	// Hops and Ranges are other refused writes: of Services in a hop, ServiceCIDRs and IPAddresses.
	Hops, Ranges []RefusedWrite
	// Quotas are those of all namespaces; QuotasErr is why they are not known.
	Quotas    []corev1.ResourceQuota
	QuotasErr error
	NodePorts apiserver.NodePorts
}

// RefusedWrite is a write that was refused.
type RefusedWrite struct {
	Namespace string
	// Object as kind and name, and what could not be done with it, naming the field.
	Object, What string
	Refusal      *admission.Refusal
}

func (t *Trier) Bridges() (tasks []func(context.Context) error) {
	if !t.May("create", "", "services") {
		t.Found.Untried = "the user may not create Services"
		return nil
	}
	for _, e := range oneOfEach(t.Inventory.Unbridged(), func(e *services.Entry) string { return e.Service.Namespace }) {
		tasks = append(tasks, func(ctx context.Context) error { return t.forms(ctx, e) })
	}
	return tasks
}

func (t *Trier) Others() []func(context.Context) error {
	tasks := []func(context.Context) error{t.quotas}
	if t.May("create", networkingv1.GroupName, "servicecidrs") {
		for _, r := range t.Ranges {
			tasks = append(tasks, func(ctx context.Context) error { return t.addRange(ctx, r) })
		}
	}
	pending := t.Inventory.Pending()
	if t.May("create", networkingv1.GroupName, "ipaddresses") && len(pending) > 0 && !t.Inventory.Bitmap {
		tasks = append(tasks, func(ctx context.Context) error { return t.reserve(ctx, pending[0]) })
	}
	hopping := slices.DeleteFunc(slices.Clone(pending), func(e *services.Entry) bool { return !e.Hops() || e.Position == services.InTransit })
	for _, e := range oneOfEach(hopping, func(e *services.Entry) string { return e.Service.Namespace + " " + string(e.Service.Spec.Type) }) {
		if t.May("create", "", "services") {
			tasks = append(tasks, func(ctx context.Context) error { return t.comeBack(ctx, e) })
		}
		if t.May("patch", "", "services") {
			tasks = append(tasks, func(ctx context.Context) error { return t.leave(ctx, e) })
		}
	}
	return tasks
}

// OwnAddresses asks once in each namespace whether a Service may be edited that keeps its other
// address itself, and notes refusals by namespace.
func (t *Trier) OwnAddresses(refused map[string]error) (tasks []func(context.Context) error) {
	mine := slices.DeleteFunc(t.Inventory.Pending(), func(e *services.Entry) bool { return !e.KeepsItself() || e.Position != services.Waiting })
	for _, e := range oneOfEach(mine, func(e *services.Entry) string { return e.Service.Namespace }) {
		tasks = append(tasks, func(ctx context.Context) error {
			no, err := hop.TryOwnAddress(ctx, t.Cluster, t.Inventory.Spec.Name, e)
			if no != nil {
				t.mu.Lock()
				defer t.mu.Unlock()
				refused[e.Service.Namespace] = no
			}
			return unlessGone(err)
		})
	}
	return tasks
}

func (t *Trier) forms(ctx context.Context, e *services.Entry) error {
	for _, form := range t.Candidates {
		refused, err := bridge.Try(ctx, t.Cluster, form, t.Inventory.Spec.BridgeLabels, e.Service, e.New)
		if err != nil {
			return unlessGone(err)
		}
		t.mu.Lock()
		all := t.Found.Forms[e.Service.Namespace]
		if all == nil {
			all = map[v1alpha1.BridgeForm]error{}
			t.Found.Forms[e.Service.Namespace] = all
		}
		all[form] = nil
		if refused != nil {
			all[form] = refused
		}
		t.mu.Unlock()
		if refused == nil {
			return nil
		}
	}
	return nil
}

func (t *Trier) leave(ctx context.Context, e *services.Entry) error {
	patch, err := hop.PatchToExternalName(t.Inventory.Spec.Name, t.Inventory.Spec.Domain, e)
	if err != nil {
		return err
	}
	delete(patch["metadata"].(map[string]any), "resourceVersion") // others go on writing
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("service %s: %w", e.Key(), err)
	}
	refused, err := admission.Patch(ctx, t.Cluster, e.Service.DeepCopy(), client.RawPatch(types.MergePatchType, body))
	if refused != nil {
		t.refusedHop(e, "cannot be made spec.type ExternalName, which it is for a moment in its hop", refused)
	}
	return unlessGone(err)
}

// comeBack creates a Service like the one before: patch B cannot be tried before patch A is sent.
func (t *Trier) comeBack(ctx context.Context, e *services.Entry) error {
	like := e.Service.DeepCopy()
	like.ObjectMeta = metav1.ObjectMeta{Namespace: like.Namespace, Labels: like.Labels, Annotations: like.Annotations}
	like.Spec.ClusterIP, like.Spec.ClusterIPs, like.Spec.HealthCheckNodePort = "", nil, 0
	for i := range like.Spec.Ports {
		like.Spec.Ports[i].NodePort = 0
	}
	like.Status = corev1.ServiceStatus{}
	refused, err := bridge.TryService(ctx, t.Cluster, like)
	if refused != nil && !refused.Quota { // patch B makes no Service more; node ports are counted by another check
		what := fmt.Sprintf("may not get its spec.type %s back after its hop: a Service like it is refused", like.Spec.Type)
		t.refusedHop(e, what, refused)
	}
	return unlessGone(err)
}

func (t *Trier) refusedHop(e *services.Entry, what string, by *admission.Refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Found.Hops = append(t.Found.Hops,
		RefusedWrite{Namespace: e.Service.Namespace, Object: "Service " + e.Key().String(), What: what, Refusal: by})
}

func (t *Trier) addRange(ctx context.Context, r ranges.ServiceRange) error {
	have, err := r.Find(ctx)
	if err != nil || have != nil {
		return err
	}
	refused, err := admission.Create(ctx, t.Cluster, r.Build())
	t.refusedRange("ServiceCIDR "+r.Name, fmt.Sprintf("cannot be created with spec.cidrs %s", r.Cidr), refused)
	return err
}

func (t *Trier) reserve(ctx context.Context, e *services.Entry) error {
	refused, err := admission.Create(ctx, t.Cluster, e.Reservation(t.Inventory.Spec.Name, e.New).Build())
	t.refusedRange("IPAddress "+e.New.String(), "cannot be reserved for the bridge of service "+e.Key().String(), refused)
	return err
}

func (t *Trier) refusedRange(object, what string, by *admission.Refusal) {
	if by == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Found.Ranges = append(t.Found.Ranges, RefusedWrite{Object: object, What: what, Refusal: by})
}

// quotas are read and not tried, since a dry run takes nothing from one.
func (t *Trier) quotas(ctx context.Context) error {
	quotas, err := cluster.List[corev1.ResourceQuota](ctx, t.Cluster, &corev1.ResourceQuotaList{})
	if apierrors.IsForbidden(err) {
		t.Found.QuotasErr = err
		return nil
	}
	t.Found.Quotas = quotas
	return err
}

func oneOfEach(entries []*services.Entry, sort func(*services.Entry) string) []*services.Entry {
	var out []*services.Entry
	seen := map[string]bool{}
	for _, e := range entries {
		if s := sort(e); !seen[s] && e.New.IsValid() {
			seen[s] = true
			out = append(out, e)
		}
	}
	return out
}

// unlessGone passes over deleted namespaces and Services, and what access.UnlessForbidden passes
// over.
func unlessGone(err error) error { return client.IgnoreNotFound(access.UnlessForbidden(err)) }
