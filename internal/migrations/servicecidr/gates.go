package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/migration"
)

// Inspector looks at API servers from outside.
type Inspector interface {
	InspectAll(ctx context.Context, addresses []string) []apiserver.Server
}

// gate waits for what only the operator, or their tooling, can do. It writes nothing to what they own, tells what to do,
// and ends when it sees that it is done.
type gate struct {
	id, title, guide string
	length           time.Duration
}

func (g *gate) ID() string              { return "gate/" + g.id }
func (g *gate) Title() string           { return g.title }
func (g *gate) Guide() string           { return g.guide }
func (g *gate) Waits()                  {}
func (g *gate) Deadline() time.Duration { return g.length }

// Do does nothing: what the gate waits for is done by somebody else.
func (g *gate) Do(context.Context) error { return nil }

// stateOf makes the State of a gate from its Verify.
func stateOf(err error) (engine.State, error) {
	switch {
	case err == nil:
		return engine.Done, nil
	case engine.Retryable(err):
		return engine.Pending, nil
	}
	return engine.Unknown, err
}

// certificateGate waits until the certificate of every API server names the address that kubernetes moves to: from the
// hop on, every client in the cluster connects to it.
type certificateGate struct {
	gate
	servers apiServers
	want    netip.Addr
}

var _ engine.Guide = (*certificateGate)(nil)

// State implements engine.Step.
func (g *certificateGate) State(ctx context.Context) (engine.State, error) {
	return stateOf(g.Verify(ctx))
}

// Verify implements engine.Step.
func (g *certificateGate) Verify(ctx context.Context) error {
	servers, err := g.servers.inspect(ctx)
	if err != nil {
		return err
	}
	return apiserver.CertificatesCover(servers, g.want)
}

// apiServers are the API servers of the cluster, as seen from where replumb runs.
type apiServers struct {
	tools     Tools
	addresses []string
}

// inspect looks at each. Unless their addresses are given, the endpoints of kubernetes are asked; if there is but one, it
// is the one the kubeconfig leads to, which may be the only way to it.
func (a apiServers) inspect(ctx context.Context) ([]apiserver.Server, error) {
	addresses := a.addresses
	if len(addresses) == 0 {
		endpoints := &discoveryv1.EndpointSliceList{}
		err := a.tools.Cluster.List(ctx, endpoints, client.InNamespace(kubernetesKey().Namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: kubernetesKey().Name})
		if err != nil {
			return nil, fmt.Errorf("endpoints of service %s: %w", kubernetesKey(), err)
		}
		if addresses = apiserver.Addresses(endpoints.Items); len(addresses) <= 1 {
			addresses = []string{a.tools.Cluster.Host()}
		}
	}
	return a.tools.Inspector.InspectAll(ctx, addresses), nil
}

// apiServerGate waits until every API server runs with a range as --service-cluster-ip-range.
type apiServerGate struct {
	gate
	servers   apiServers
	migration string
	want      netip.Prefix
	// confirmation is the value of the Migration's annotation by which the operator vouches for what cannot be seen.
	confirmation string
	// lenient passes over what cannot be seen: nothing was found that the API servers could have been given.
	lenient bool
}

// State implements engine.Step.
func (g *apiServerGate) State(ctx context.Context) (engine.State, error) {
	return stateOf(g.Verify(ctx))
}

// Verify implements engine.Step.
func (g *apiServerGate) Verify(ctx context.Context) error {
	servers, err := g.servers.inspect(ctx)
	if err != nil {
		return err
	}
	pods := &corev1.PodList{}
	err = g.servers.tools.Cluster.List(ctx, pods, client.InNamespace(metav1.NamespaceSystem),
		client.MatchingLabels{"component": "kube-apiserver"})
	if err != nil {
		return fmt.Errorf("listing the pods of API servers: %w", err)
	}
	missing, unknown := apiserver.AllOnRange(servers, apiserver.FromPods(pods.Items), g.want)
	switch {
	case len(missing) > 0:
		return engine.NotYet("--service-cluster-ip-range is not %s on %s", g.want, strings.Join(missing, ", "))
	case len(unknown) == 0 || g.lenient:
		return nil
	}
	m, err := migration.Get(ctx, g.servers.tools.Cluster, g.migration)
	if err != nil {
		return err
	}
	if m != nil && m.Annotations[v1alpha1.AnnotationAPIServers] == g.confirmation {
		return nil
	}
	return engine.NotYet("the --service-cluster-ip-range of %s cannot be seen from here; once it is %s everywhere, confirm it: "+
		"kubectl annotate migrations.replumb.dev %s --overwrite %s=%s",
		strings.Join(unknown, ", "), g.want, g.migration, v1alpha1.AnnotationAPIServers, g.confirmation)
}

// kubeletGate waits until no kubelet gives pods the cluster DNS address that is left behind. It then writes down when, so
// that pods started before can be told from those started since.
type kubeletGate struct {
	gate
	tools     Tools
	migration string
	// left are the addresses that no kubelet may name any more.
	left []netip.Addr

	waiting []string
}

// State implements engine.Step.
func (g *kubeletGate) State(ctx context.Context) (engine.State, error) {
	m, err := migration.Get(ctx, g.tools.Cluster, g.migration)
	if err != nil {
		return engine.Unknown, err
	}
	if m == nil || m.Status.NodesRepointedAt == nil {
		return engine.Pending, nil
	}
	return stateOf(g.ask(ctx))
}

// Verify implements engine.Step.
func (g *kubeletGate) Verify(ctx context.Context) error {
	if err := g.ask(ctx); err != nil {
		return err
	}
	at := metav1.NewTime(g.tools.now())
	return migration.UpdateStatus(ctx, g.tools.Cluster, g.migration, func(st *v1alpha1.MigrationStatus) {
		if st.NodesRepointedAt == nil {
			st.NodesRepointedAt = &at
		}
	})
}

// ask goes through the nodes; those that were in order in an earlier round are not asked again, until all are.
func (g *kubeletGate) ask(ctx context.Context) error {
	if g.waiting == nil {
		nodes := &corev1.NodeList{}
		if err := g.tools.Cluster.List(ctx, nodes); err != nil {
			return fmt.Errorf("listing nodes: %w", err)
		}
		for i := range nodes.Items {
			g.waiting = append(g.waiting, nodes.Items[i].Name)
		}
	}
	var mu sync.Mutex
	var still, reasons []string
	var eg errgroup.Group
	eg.SetLimit(32)
	for _, node := range g.waiting {
		eg.Go(func() error {
			if reason := g.askOne(ctx, node); reason != "" {
				mu.Lock()
				defer mu.Unlock()
				still, reasons = append(still, node), append(reasons, reason)
			}
			return nil
		})
	}
	_ = eg.Wait() // the goroutines report in still
	if len(still) == 0 {
		g.waiting = nil
		return nil
	}
	g.waiting = still
	slices.Sort(reasons)
	return engine.NotYet("%s", listing(reasons))
}

func (g *kubeletGate) askOne(ctx context.Context, node string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer := g.tools.Cluster.Kubelet(ctx, node)
	if answer.Err != nil {
		if err := g.tools.Cluster.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{}); apierrors.IsNotFound(err) {
			return "" // it has left the cluster
		}
		return fmt.Sprintf("the kubelet of node %s did not say: %v", node, answer.Err)
	}
	for _, a := range g.left {
		if slices.Contains(answer.DNS, a.String()) {
			return fmt.Sprintf("the kubelet of node %s gives pods clusterDNS %s", node, a)
		}
	}
	return ""
}
