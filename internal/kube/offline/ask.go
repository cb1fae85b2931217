package offline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/serviceranges"
)

func (t *Taker) ask(ctx context.Context) (*answers, error) {
	a := &answers{Paths: map[string]answer{}}
	for _, path := range []string{"/version", "/api", "/apis", "/api/v1"} {
		if err := t.path(ctx, a, path); err != nil {
			return nil, err
		}
	}
	groups := &metav1.APIGroupList{}
	if err := json.Unmarshal([]byte(a.Paths["/apis"].Body), groups); err != nil {
		return nil, fmt.Errorf("reading the groups of the API server: %w", err)
	}
	for i := range groups.Groups {
		for _, v := range groups.Groups[i].Versions {
			if err := t.path(ctx, a, "/apis/"+v.GroupVersion); err != nil {
				return nil, err
			}
		}
	}
	if err := t.flags(ctx, a); err != nil {
		return nil, err
	}
	if err := t.kubelets(ctx, a); err != nil {
		return nil, err
	}
	if err := t.access(ctx, a); err != nil {
		return nil, err
	}
	return a, t.servers(ctx, a)
}

// path asks for one, and keeps a refusal as well.
func (t *Taker) path(ctx context.Context, a *answers, path string) error {
	body, err := t.Cluster.GetRaw(ctx, path)
	said, err := answerOf(body, err)
	if err != nil {
		return err
	}
	a.Paths[path] = *said
	return nil
}

// answerOf tells a refusal of an API server, which is an answer, from no answer.
func answerOf(body []byte, err error) (*answer, error) {
	if err == nil {
		return &answer{Code: http.StatusOK, Body: string(body)}, nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code < http.StatusBadRequest {
		return nil, err
	}
	return refusal(err), nil
}

// flags asks the API server that answers for its flags, in the form that checks ask for, and keeps
// those that they read.
func (t *Taker) flags(ctx context.Context, a *answers) error {
	body, kind, err := apiserver.Flags(ctx, t.Cluster)
	said, err := answerOf(body, err)
	if err != nil {
		return err
	}
	if said.Type = kind; said.Code != http.StatusOK {
		said.Type = ""
	}
	a.Paths["/flagz"] = *said
	return nil
}

func (t *Taker) kubelets(ctx context.Context, a *answers) error {
	nodes, err := cluster.List[corev1.Node](ctx, t.Cluster, &corev1.NodeList{})
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for name, k := range inventory.Kubelets(ctx, t.Cluster, nodes) {
		said := &answer{Code: http.StatusOK}
		if k.Err != nil {
			if said, err = answerOf(nil, k.Err); err != nil {
				said = refusal(apierrors.NewServiceUnavailable(k.Err.Error()))
			}
		} else {
			body, err := json.Marshal(map[string]any{
				"kubeletconfig": map[string]any{"clusterDomain": k.Domain, "clusterDNS": k.DNS},
			})
			if err != nil {
				return fmt.Errorf("node %s: %w", name, err)
			}
			said.Body = string(body)
		}
		a.Paths[inventory.KubeletPath(name)] = *said
	}
	return ctx.Err()
}

// access asks the authorizer for all rights, and for what is wider than those that are about one
// object.
func (t *Taker) access(ctx context.Context, a *answers) error {
	var ask []access.Right
	seen := map[access.Right]bool{}
	add := func(r access.Right) {
		if !seen[r] {
			seen[r] = true
			ask = append(ask, r)
		}
	}
	for _, r := range slices.Concat(everything(), t.Rights, access.Grant("", "secrets", "", "list")) {
		add(r)
		if r.Name = ""; r.URL == "" {
			add(r)
		}
	}
	all, err := t.Cluster.Access(ctx, ask)
	if err != nil {
		return err
	}
	for i := range all {
		a.Access = append(a.Access, accessReview{Spec: all[i].Right.Question(), Allowed: all[i].Allowed, Reason: all[i].Reason})
	}
	return nil
}

func (t *Taker) servers(ctx context.Context, a *answers) error {
	found := &discoveryv1.EndpointSliceList{}
	ofKubernetes := client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}
	err := t.Cluster.List(ctx, found, client.InNamespace(metav1.NamespaceDefault), ofKubernetes)
	if err != nil && !apierrors.IsForbidden(err) {
		return fmt.Errorf("looking for API servers: %w", err)
	}
	addresses := apiserver.Addresses(found.Items)
	if host := t.Cluster.Host(); !slices.Contains(addresses, host) {
		addresses = append(addresses, host)
	}
	seen := t.Inspector.InspectAll(ctx, addresses)
	for i := range seen {
		a.Servers = append(a.Servers, apiserver.Record(&seen[i]))
	}
	api, err := t.Cluster.Ranges(ctx)
	if err != nil || api != serviceranges.Bitmap {
		return err
	}
	return t.flagRanges(ctx, a)
}

// flagRanges asks API servers that have a flag and no ServiceCIDRs which range they give addresses
// of, by dry runs that are refused.
func (t *Taker) flagRanges(ctx context.Context, a *answers) error {
	a.Ranges = map[string]answer{}
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		svc := serviceranges.OutOfRange(family)
		ip := svc.Spec.ClusterIP
		said, err := answerOf(nil, t.Cluster.Create(ctx, svc, client.DryRunAll))
		if err != nil {
			return fmt.Errorf("asking for the range of the API server: %w", err)
		}
		if said.Code == http.StatusOK { // who takes an address of no range gives no answer
			continue
		}
		a.Ranges[ip] = *said
		for i := range a.Servers {
			r, err := t.Inspector.Gives(ctx, a.Servers[i].Address, family)
			if err != nil {
				continue
			}
			if a.Servers[i].Gives == nil {
				a.Servers[i].Gives = map[corev1.IPFamily]netip.Prefix{}
			}
			a.Servers[i].Gives[family] = r
		}
	}
	return nil
}
