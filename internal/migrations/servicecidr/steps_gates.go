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
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/migration"
)

// Inspector looks at API servers from outside.
type Inspector interface {
	InspectAll(ctx context.Context, addresses []string) []apiserver.Server
}

// newGate waits for what only the operator, or their tooling, can do. It writes nothing to what they own, says what to do,
// and ends when it sees that it is done.
func newGate(id, title, guide string, limit time.Duration, holds func(context.Context) error) *engine.Gate {
	return &engine.Gate{
		Wait:         engine.Wait{Name: "gate/" + id, About: title, For: holds, Limit: limit},
		Instructions: func() string { return guide },
	}
}

// apiServers are the API servers of the cluster, as seen from where replumb runs, or from nodes where it does not reach them.
type apiServers struct {
	cluster   *cluster.Cluster
	inspector Inspector
	addresses []string
	// witnesses are the nodes that look at API servers, too.
	witnesses func() []apiserver.Witness
	// bitmap says that they have their range as a flag and nothing else, so that each says it when it is asked for an address.
	bitmap bool
	// family is that of the range which is asked for then.
	family corev1.IPFamily

	// from says which were seen from nodes at the latest look.
	from []string
}

// remark is what there is to say of how they were seen; nothing, if it was from here.
func (a *apiServers) remark() string { return strings.Join(a.from, "; ") }

// inspect looks at each. Unless their addresses are given, the endpoints of kubernetes are asked; if there is but one, it
// is the one the kubeconfig leads to, which may be the only way to it.
func (a *apiServers) inspect(ctx context.Context) ([]apiserver.Server, error) {
	addresses := a.addresses
	if len(addresses) == 0 {
		endpoints := &discoveryv1.EndpointSliceList{}
		err := a.cluster.List(ctx, endpoints, client.InNamespace(kubernetesKey().Namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: kubernetesKey().Name})
		if err != nil {
			return nil, fmt.Errorf("endpoints of service %s: %w", kubernetesKey(), err)
		}
		if addresses = apiserver.Addresses(endpoints.Items); len(addresses) <= 1 {
			addresses = []string{a.cluster.Host()}
		}
	}
	servers := apiserver.Through(a.asked(ctx, a.inspector.InspectAll(ctx, addresses)), a.witnesses())
	a.from = nil
	for _, s := range servers {
		if s.From != "" {
			a.from = append(a.from, fmt.Sprintf("API server %s was seen from %s", s.Address, s.From))
		}
	}
	return servers, nil
}

// asker has an API server say which range it gives addresses from.
type asker interface {
	Gives(ctx context.Context, address string, family corev1.IPFamily) (netip.Prefix, error)
}

// asked has API servers that do not tell their flags say from which range they give addresses, where that is the flag.
func (a *apiServers) asked(ctx context.Context, servers []apiserver.Server) []apiserver.Server {
	asks, can := a.inspector.(asker)
	if !a.bitmap || !can {
		return servers
	}
	for i := range servers {
		s := &servers[i]
		if s.FlagsErr == nil || s.CertErr != nil {
			continue
		}
		r, err := asks.Gives(ctx, s.Address, a.family)
		if err != nil {
			s.FlagsErr = fmt.Errorf("%w; %w", s.FlagsErr, err)
			continue
		}
		s.Ranges, s.FlagsErr = []netip.Prefix{r}, nil
	}
	return servers
}

// certified holds once the certificate of every API server names all of some addresses: where kubernetes goes, since every client in the
// cluster connects there from the hop on, and where it was, since those that run go on using that.
func (a *apiServers) certified(want ...netip.Addr) func(context.Context) error {
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
	servers   *apiServers
	migration string
	want      []netip.Prefix
	// confirmation is the value of the Migration's annotation by which the operator vouches for what cannot be seen.
	confirmation string
	// lenient passes over what cannot be seen: nothing was found that the API servers could have been given.
	lenient bool
}

func (g onRange) holds(ctx context.Context) error {
	servers, err := g.servers.inspect(ctx)
	if err != nil {
		return err
	}
	pods, err := controlplane.APIServer.Pods(ctx, g.servers.cluster)
	if err != nil {
		return fmt.Errorf("listing the pods of API servers: %w", err)
	}
	missing, unknown := apiserver.AllOnRange(servers, apiserver.FromPods(pods), g.want)
	switch {
	case len(missing) > 0:
		return engine.NotYet("--service-cluster-ip-range is not %s on %s", flagOf(g.want), strings.Join(missing, ", "))
	case len(unknown) == 0 || g.lenient:
		return nil
	}
	m, err := migration.Get(ctx, g.servers.cluster, g.migration)
	if err != nil {
		return err
	}
	if migration.Answered(m, v1alpha1.AnnotationAPIServers, g.confirmation) {
		return nil
	}
	return engine.NotYet("the --service-cluster-ip-range of %s cannot be seen from here; once it is %s everywhere, confirm it: "+
		"kubectl annotate migrations.replumb.dev %s --overwrite %s=%s",
		strings.Join(unknown, ", "), flagOf(g.want), g.migration, v1alpha1.AnnotationAPIServers, g.confirmation)
}

// kubelets are those of all nodes, none of which may give pods the cluster DNS address that is left behind.
type kubelets struct {
	cluster   *cluster.Cluster
	migration string
	// left are the addresses that no kubelet may name any more.
	left []netip.Addr
	// confirmation is the value of the Migration's annotation by which the operator vouches for kubelets that they have no right to ask.
	confirmation string

	// waiting are the nodes that were not in order when they were last asked; nil means all.
	waiting []string
}

// holds goes through the nodes; those that were in order in an earlier round are not asked again, until all are.
func (k *kubelets) holds(ctx context.Context) error {
	if k.waiting == nil {
		nodes := &corev1.NodeList{}
		if err := k.cluster.List(ctx, nodes); err != nil {
			return fmt.Errorf("listing nodes: %w", err)
		}
		for i := range nodes.Items {
			k.waiting = append(k.waiting, nodes.Items[i].Name)
		}
	}
	vouched, err := k.vouched(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var still, reasons []string
	var eg errgroup.Group
	eg.SetLimit(parallel)
	for _, node := range k.waiting {
		eg.Go(func() error {
			if reason := k.ask(ctx, node, vouched); reason != "" {
				mu.Lock()
				defer mu.Unlock()
				still, reasons = append(still, node), append(reasons, reason)
			}
			return nil
		})
	}
	_ = eg.Wait() // the goroutines report in still
	if len(still) == 0 {
		k.waiting = nil
		return nil
	}
	k.waiting = still
	slices.Sort(reasons)
	return engine.NotYet("%s", listing(reasons))
}

// vouched reports whether the operator says that kubelets which cannot be asked are in order.
func (k *kubelets) vouched(ctx context.Context) (bool, error) {
	if k.confirmation == "" {
		return false, nil
	}
	m, err := migration.Get(ctx, k.cluster, k.migration)
	return err == nil && migration.Answered(m, v1alpha1.AnnotationKubelets, k.confirmation), err
}

// ask says what is wrong with one kubelet; nothing, if it is in order.
func (k *kubelets) ask(ctx context.Context, node string, vouched bool) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer := cluster.AskKubelet(ctx, k.cluster, node)
	if answer.Err != nil {
		return k.silent(ctx, node, answer.Err, vouched)
	}
	for _, a := range k.left {
		if slices.Contains(answer.DNS, a.String()) {
			return fmt.Sprintf("the kubelet of node %s gives pods clusterDNS %s", node, a)
		}
	}
	return ""
}

// silent says what to do about a kubelet that does not answer; nothing, if it is in order all the same.
func (k *kubelets) silent(ctx context.Context, node string, why error, vouched bool) string {
	err := k.cluster.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{})
	switch {
	case apierrors.IsNotFound(err): // it has left the cluster
		return ""
	case !apierrors.IsForbidden(why):
		return fmt.Sprintf("the kubelet of node %s did not say: %v", node, why)
	case vouched:
		return ""
	}
	return fmt.Sprintf("the kubelet of node %s cannot be asked without the right to get nodes/proxy; once it names %s as cluster DNS, "+
		"confirm it: kubectl annotate migrations.replumb.dev %s --overwrite %s=%s",
		node, k.confirmation, k.migration, v1alpha1.AnnotationKubelets, k.confirmation)
}

// recordKubelets writes down when no kubelet was found to name the address that is left any more, so that pods started before
// can be distinguished from those started since.
func recordKubelets(c client.Client, name string, now func() time.Time) engine.Step {
	return &engine.Write{
		Name: "record/kubelets", About: "Record that kubelets have been seen to name the other address", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			m, err := migration.Get(ctx, c, name)
			if err == nil && (m == nil || m.Status.NodesRepointedAt == nil) {
				return engine.NotYet("status.nodesRepointedAt of migration %s is not set yet", name)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			at := metav1.NewTime(now())
			return migration.UpdateStatus(ctx, c, name, func(st *v1alpha1.MigrationStatus) { st.NodesRepointedAt = &at })
		},
		Changes: migration.StatusChange(name, map[string]any{"nodesRepointedAt": "<now>"}),
	}
}
