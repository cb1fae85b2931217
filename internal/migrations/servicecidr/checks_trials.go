package servicecidr

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
)

// trier makes the trials. What the user has no right to write it does not try: the rights check says so.
type trier struct {
	cluster *cluster.Cluster
	survey  *Inventory
	may     func(verb, group, resource string) bool
	// ranges are the ServiceCIDRs that are yet to be added.
	ranges []ownRange
	// candidates are the forms of bridges to try, best first.
	candidates []v1alpha1.BridgeForm

	mu    sync.Mutex
	found *Trials
}

// Trials are what the API server says to writes that are yet to come, by dry runs, and what limits them.
type Trials struct {
	// Untried is why no Service was tried; empty if they were, or none had to be.
	Untried string
	// Forms says by namespace of each form of bridge that was tried why it was refused; nil means it was admitted.
	Forms map[string]map[v1alpha1.BridgeForm]error
	// Hops and Ranges are other writes that were refused: of Services in the middle of a hop, and of ServiceCIDRs and IPAddresses.
	Hops, Ranges []Trial
	// Quotas are those of all namespaces; QuotasErr is why they are not known.
	Quotas    []corev1.ResourceQuota
	QuotasErr error
	// NodePorts is the range that health-check ports of bridges are taken from.
	NodePorts apiserver.NodePorts
}

// Trial is a write that was refused.
type Trial struct {
	Namespace string
	// Object as kind and name, and what could not be done with it, naming the field.
	Object, What string
	Refusal      *admission.Refusal
}

// bridges are the trials of bridges. They may be made side by side, as all others.
func (t *trier) bridges() (tasks []func(context.Context) error) {
	if !t.may("create", "", "services") {
		t.found.Untried = "the user may not create Services"
		return nil
	}
	for _, e := range oneOfEach(unbridgedOf(t.survey), func(e *Entry) string { return e.Service.Namespace }) {
		tasks = append(tasks, func(ctx context.Context) error { return t.forms(ctx, e) })
	}
	return tasks
}

// others are the trials of what a move writes beside bridges.
func (t *trier) others() []func(context.Context) error {
	tasks := []func(context.Context) error{t.quotas}
	if t.may("create", networking, "servicecidrs") {
		for _, r := range t.ranges {
			tasks = append(tasks, func(ctx context.Context) error { return t.addRange(ctx, r) })
		}
	}
	pending := t.survey.Pending()
	if t.may("create", networking, "ipaddresses") && len(pending) > 0 && !t.survey.Bitmap {
		tasks = append(tasks, func(ctx context.Context) error { return t.reserve(ctx, pending[0]) })
	}
	hopping := slices.DeleteFunc(slices.Clone(pending), func(e *Entry) bool { return !e.Hops() || e.Position == InTransit })
	for _, e := range oneOfEach(hopping, func(e *Entry) string { return e.Service.Namespace + " " + string(e.Service.Spec.Type) }) {
		if t.may("create", "", "services") {
			tasks = append(tasks, func(ctx context.Context) error { return t.comeBack(ctx, e) })
		}
		if t.may("patch", "", "services") {
			tasks = append(tasks, func(ctx context.Context) error { return t.leave(ctx, e) })
		}
	}
	return tasks
}

// forms tries the forms of bridges in a namespace, until one is admitted.
func (t *trier) forms(ctx context.Context, e *Entry) error {
	for _, form := range t.candidates {
		refused, err := bridge.Try(ctx, t.cluster, form, e.Service, e.New)
		if err != nil {
			return unlessGone(err)
		}
		t.mu.Lock()
		all := t.found.Forms[e.Service.Namespace]
		if all == nil {
			all = map[v1alpha1.BridgeForm]error{}
			t.found.Forms[e.Service.Namespace] = all
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

// leave tries patch A, as it will be sent.
func (t *trier) leave(ctx context.Context, e *Entry) error {
	h := &hopStep{steps: &Steps{migration: t.survey.Spec.Name, domain: t.survey.Spec.Domain}, entry: e, to: engine.Forward}
	patch, err := h.patchToExternalName(e.Service)
	if err != nil {
		return err
	}
	delete(patch["metadata"].(map[string]any), "resourceVersion") // others go on writing
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("service %s: %w", e.Key(), err)
	}
	refused, err := admission.Patch(ctx, t.cluster, e.Service.DeepCopy(), client.RawPatch(types.MergePatchType, body))
	if refused != nil {
		t.refusedHop(e, "cannot be made spec.type ExternalName, which it is for a moment in its hop", refused)
	}
	return unlessGone(err)
}

// comeBack tries what comes nearest to patch B, which cannot be tried on a Service that has not left: to create a Service like the one that
// was there before.
func (t *trier) comeBack(ctx context.Context, e *Entry) error {
	like := e.Service.DeepCopy()
	like.ObjectMeta = metav1.ObjectMeta{Namespace: like.Namespace, Labels: like.Labels, Annotations: like.Annotations}
	like.Spec.ClusterIP, like.Spec.ClusterIPs, like.Spec.HealthCheckNodePort = "", nil, 0
	for i := range like.Spec.Ports {
		like.Spec.Ports[i].NodePort = 0
	}
	like.Status = corev1.ServiceStatus{}
	refused, err := bridge.TryService(ctx, t.cluster, like)
	if refused != nil && !refused.Quota { // patch B makes no Service more; node ports are counted by another check
		what := fmt.Sprintf("may not get its spec.type %s back after its hop: a Service like it is refused", like.Spec.Type)
		t.refusedHop(e, what, refused)
	}
	return unlessGone(err)
}

func (t *trier) refusedHop(e *Entry, what string, by *admission.Refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found.Hops = append(
		t.found.Hops,
		Trial{Namespace: e.Service.Namespace, Object: "Service " + e.Key().String(), What: what, Refusal: by},
	)
}

// addRange tries to add a Service range, unless the cluster has it.
func (t *trier) addRange(ctx context.Context, r ownRange) error {
	have, err := r.find(ctx)
	if err != nil || have != nil {
		return err
	}
	refused, err := admission.Create(ctx, t.cluster, r.build())
	t.refusedRange("ServiceCIDR "+r.name, fmt.Sprintf("cannot be created with spec.cidrs %s", r.cidr), refused)
	return err
}

// reserve tries to reserve an address.
func (t *trier) reserve(ctx context.Context, e *Entry) error {
	refused, err := admission.Create(ctx, t.cluster, e.reservation(t.survey.Spec.Name, e.New).Build())
	t.refusedRange("IPAddress "+e.New.String(), "cannot be reserved for the bridge of service "+e.Key().String(), refused)
	return err
}

func (t *trier) refusedRange(object, what string, by *admission.Refusal) {
	if by == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found.Ranges = append(t.found.Ranges, Trial{Object: object, What: what, Refusal: by})
}

// quotas are read and not tried: a dry run takes nothing from one, and so says nothing of many.
func (t *trier) quotas(ctx context.Context) error {
	quotas, err := cluster.List[corev1.ResourceQuota](ctx, t.cluster, &corev1.ResourceQuotaList{})
	if apierrors.IsForbidden(err) {
		t.found.QuotasErr = err
		return nil
	}
	t.found.Quotas = quotas
	return err
}

// oneOfEach is the first of the entries of each sort that has a place to go to.
func oneOfEach(entries []*Entry, sort func(*Entry) string) []*Entry {
	var out []*Entry
	seen := map[string]bool{}
	for _, e := range entries {
		if s := sort(e); !seen[s] && e.New.IsValid() {
			seen[s] = true
			out = append(out, e)
		}
	}
	return out
}

// unlessGone passes over namespaces and Services that were deleted meanwhile, and leaves it to the rights check to say what the user may
// not do.
func unlessGone(err error) error { return client.IgnoreNotFound(unlessForbidden(err)) }

// unlessForbidden leaves it to the rights check to say what the user may not do.
func unlessForbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}
