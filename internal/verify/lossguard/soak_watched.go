package lossguard

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/verify/leftaddress"
)

// readLeft reads what is to be watched once, and again where an agent watches something else: it
// may have seen what came later.
func (s *Soak) readLeft(ctx context.Context, reports []v1alpha1.NodeReport, now time.Time) error {
	if s.Left == nil {
		return nil
	}
	differ := slices.ContainsFunc(reports, func(r v1alpha1.NodeReport) bool { return s.lacks(&r) != "" })
	if !s.read.IsZero() && (!differ && s.unreserved() == "" || now.Sub(s.read) < s.limit()/8) {
		return nil
	}
	left, err := s.Left(ctx)
	if err != nil {
		return err
	}
	s.left, s.read = left, now
	return nil
}

func (s *Soak) lacks(r *v1alpha1.NodeReport) string {
	if s.Left == nil {
		return ""
	}
	return s.left.Lacks(r.Status.Watched)
}

// unreserved names an old address that nobody can watch, since nothing says whose it is.
func (s *Soak) unreserved() string {
	missing := make([]netip.Addr, 0)
	for a := range s.Must {
		if _, is := s.left[a]; !is {
			missing = append(missing, a)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	a := slices.MinFunc(missing, netip.Addr.Compare)
	more := ""
	if n := len(missing) - 1; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("old address %s (service %s)%s is not reserved any more, so that no agent knows to watch it: "+
		"replumb apply reserves it again", a, s.Must[a], more)
}

// unwatched says what is not watched, by the last reports of ready nodes.
func (s *Soak) unwatched(ready []string) string {
	if s.Left == nil {
		return ""
	}
	if text := s.unreserved(); text != "" {
		return text
	}
	var words []string
	for _, name := range ready {
		if n := s.nodes[name]; n.lacks != "" {
			words = append(words, fmt.Sprintf("node %s %s", name, n.lacks))
		}
	}
	slices.Sort(words)
	if n := len(words); n > named {
		words = append(words[:named], fmt.Sprintf("and %d more nodes", n-named))
	}
	return strings.Join(words, "; ")
}

// mostAsked bounds for how many pods the API server is asked in a look.
const mostAsked = 64

// stillThere leaves out pods that the API server does not have any more: a node may be behind, and
// nobody can restart them.
func (s *Soak) stillThere(ctx context.Context, using []OldAddressClient) []OldAddressClient {
	asked := map[string]bool{}
	return slices.DeleteFunc(using, func(c OldAddressClient) bool {
		namespace, name, isPod := strings.Cut(c.Pod, "/")
		gone, known := asked[c.Pod]
		if !isPod || known || len(asked) == mostAsked {
			return gone
		}
		pods := &metav1.PartialObjectMetadataList{}
		pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		err := s.Client.List(ctx, pods, client.InNamespace(namespace), client.MatchingFields{metav1.ObjectNameField: name})
		asked[c.Pod] = err == nil && len(pods.Items) == 0
		return asked[c.Pod]
	})
}

// Left reads what Services have left, in a cluster.
func Left(ctx context.Context, c client.Client, migration string, ranges leftaddress.Ranges) (leftaddress.Addresses, error) {
	reserved := &networkingv1.IPAddressList{}
	selected := client.MatchingLabels{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleHold}
	if err := c.List(ctx, reserved, selected); err != nil {
		return nil, fmt.Errorf("listing reserved addresses: %w", err)
	}
	services, err := cluster.List[corev1.Service](ctx, c, &corev1.ServiceList{})
	if err != nil {
		return nil, err
	}
	held, all := make([]*networkingv1.IPAddress, len(reserved.Items)), make([]*corev1.Service, len(services))
	for i := range reserved.Items {
		held[i] = &reserved.Items[i]
	}
	for i := range services {
		all[i] = &services[i]
	}
	return leftaddress.Of(migration, held, all, ranges), nil
}
