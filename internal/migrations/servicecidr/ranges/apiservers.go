package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/safety/lease"
)

// Inspector looks at API servers from outside.
type Inspector interface {
	InspectAll(ctx context.Context, addresses []string) []apiserver.APIServer
}

// NewGate waits for the operator. It writes nothing, says what to do, and ends when that is seen.
func NewGate(id, title, guide string, limit time.Duration, holds func(context.Context) error) *engine.Gate {
	return &engine.Gate{
		Wait:         engine.Wait{Name: "gate/" + id, About: title, For: lease.Outlasting(holds), Limit: limit},
		Instructions: func() string { return guide },
	}
}

// APIServers are seen from where replumb runs, or from nodes where it does not reach them.
type APIServers struct {
	Cluster   *cluster.Cluster
	Inspector Inspector
	Addresses []string
	// Witnesses are the nodes that look at API servers, too.
	Witnesses func() []apiserver.ObservingNode
	// Bitmap says that their range is a flag alone, so that each tells it when asked for an
	// address.
	Bitmap bool
	// Family is that of the range which is asked for then.
	Family corev1.IPFamily

	// from says which were seen from nodes at the latest look.
	from []string
}

// Remark says how they were seen; empty, if from here.
func (a *APIServers) Remark() string { return strings.Join(a.from, "; ") }

// inspect looks at each API server: the given ones, or the endpoints of kubernetes. A single one is
// that of the kubeconfig, which may be the only way to it.
func (a *APIServers) inspect(ctx context.Context) ([]apiserver.APIServer, error) {
	addresses := a.Addresses
	if len(addresses) == 0 {
		endpoints := &discoveryv1.EndpointSliceList{}
		err := a.Cluster.List(ctx, endpoints, client.InNamespace(services.KubernetesKey().Namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: services.KubernetesKey().Name})
		if err != nil {
			return nil, fmt.Errorf("endpoints of service %s: %w", services.KubernetesKey(), err)
		}
		if addresses = apiserver.Addresses(endpoints.Items); len(addresses) <= 1 {
			addresses = []string{a.Cluster.Host()}
		}
	}
	servers := apiserver.Through(a.asked(ctx, a.Inspector.InspectAll(ctx, addresses)), a.Witnesses())
	a.from = nil
	for _, s := range servers {
		if s.From != "" {
			a.from = append(a.from, fmt.Sprintf("API server %s was seen from %s", s.Address, s.From))
		}
	}
	return servers, nil
}

type asker interface {
	Gives(ctx context.Context, address string, family corev1.IPFamily) (netip.Prefix, error)
}

// asked has API servers that do not tell their flags give an address of their range.
func (a *APIServers) asked(ctx context.Context, servers []apiserver.APIServer) []apiserver.APIServer {
	asks, can := a.Inspector.(asker)
	if !a.Bitmap || !can {
		return servers
	}
	for i := range servers {
		s := &servers[i]
		if s.FlagsErr == nil || s.CertErr != nil {
			continue
		}
		r, err := asks.Gives(ctx, s.Address, a.Family)
		if err != nil {
			s.FlagsErr = fmt.Errorf("%w; %w", s.FlagsErr, err)
			continue
		}
		s.Ranges, s.FlagsErr = []netip.Prefix{r}, nil
	}
	return servers
}

// Certified holds once the certificates of all API servers name all of some addresses: clients use
// the former one until they restart.
func (a *APIServers) Certified(want ...netip.Addr) func(context.Context) error {
	return func(ctx context.Context) error {
		servers, err := a.inspect(ctx)
		if err != nil {
			return err
		}
		for _, a := range want {
			if err := apiserver.CertificatesCover(servers, a); err != nil {
				return err
			}
		}
		return nil
	}
}

// onRange is every API server with ranges as --service-cluster-ip-range.
type onRange struct {
	servers   *APIServers
	migration string
	want      []netip.Prefix
	// confirmation is the annotation's value by which the operator vouches for what cannot be seen.
	confirmation string
	// lenient passes over the unseen, where the API servers were given nothing as far as is known.
	lenient bool
}

// notOn says what has another flag. Static pods are seen late.
func notOn(want []netip.Prefix, programs []string) error {
	return engine.NotYet("--service-cluster-ip-range is not %s on %s (kubelets renew what the API shows of static pods within two minutes)",
		FlagText(want), strings.Join(programs, ", "))
}

func (g onRange) holds(ctx context.Context) error {
	servers, err := g.servers.inspect(ctx)
	if err != nil {
		return err
	}
	pods, err := controlplane.APIServer.Pods(ctx, g.servers.Cluster)
	if err != nil {
		return fmt.Errorf("listing the pods of API servers: %w", err)
	}
	missing, unknown := apiserver.AllOnRange(servers, apiserver.FromPods(pods), g.want)
	switch {
	case len(missing) > 0:
		return notOn(g.want, missing)
	case len(unknown) == 0 || g.lenient:
		return nil
	}
	m, err := migration.Get(ctx, g.servers.Cluster, g.migration)
	if err != nil {
		return err
	}
	if migration.Answered(m, v1alpha1.AnnotationAPIServers, g.confirmation) {
		return nil
	}
	return engine.NotYet("the --service-cluster-ip-range of %s cannot be seen from here; once it is %s everywhere, confirm it: "+
		"kubectl annotate migrations.replumb.dev %s --overwrite %s=%s",
		strings.Join(unknown, ", "), FlagText(g.want), g.migration, v1alpha1.AnnotationAPIServers, g.confirmation)
}
