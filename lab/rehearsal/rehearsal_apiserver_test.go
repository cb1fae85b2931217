//go:build apiserver

package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	oldRange, newRange = "10.96.0.0/16", "172.24.0.0/16"
	shop               = "shop"
)

func (c *Command) phase(name string) Phase {
	at := slices.IndexFunc(c.Phases, func(p Phase) bool { return p.Name == name })
	if at < 0 {
		return Phase{}
	}
	return c.Phases[at]
}

// TestRehearse takes a snapshot of a cluster and has its Services moved in another one. The control is a Service that replumb refuses to
// begin with.
func TestRehearse(t *testing.T) {
	s := newSource(t)
	cart := service(shop, "cart", "10.96.3.7")
	nodes := service(shop, "at-nodes", "10.96.3.8")
	nodes.Spec.Type, nodes.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
	none := service(shop, "headless", corev1.ClusterIPNone)
	for _, svc := range []*corev1.Service{cart, nodes, none} {
		s.add(svc)
	}
	s.add(sliceOf(cart, corev1.IPv4Protocol, s.deployment("cart", 2)))
	s.add(
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "pull"},
			Type:       corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{
				corev1.DockerConfigJsonKey: []byte(`{"auths":{}}`),
			},
		},
	)

	server := corev1.ConfigMap{}
	s.must(s.Get(t.Context(), madeFirst(), &server))
	var before, after corev1.Service
	s.must(s.Get(t.Context(), client.ObjectKeyFromObject(cart), &before))
	r := s.rehearse(s.snapshot(), true, func(ctx context.Context, c client.Client) error {
		return errors.Join(moved(ctx, c), stays(ctx, c, &server))
	})
	if r.Outcome != Done || len(r.Errors) > 0 || r.Objects.Lacking > 0 {
		t.Errorf("%s, with errors %q; not made: %v", r.Outcome, r.Errors, r.Objects.Refused)
	}
	if r.Services.Move < 3 {
		t.Errorf("%d Services move", r.Services.Move)
	}
	requireCourse(t, r)
	if !slices.ContainsFunc(r.Restarts, func(title string) bool { return strings.Contains(title, "shop/cart") }) {
		t.Errorf("Deployment shop/cart carries old addresses, and its restart is not planned: %q", r.Restarts)
	}
	s.must(s.Get(t.Context(), client.ObjectKeyFromObject(cart), &after))
	if after.ResourceVersion != before.ResourceVersion || after.Spec.ClusterIP != "10.96.3.7" {
		t.Errorf("the rehearsal has changed the cluster of the snapshot: %+v", after.Spec)
	}

	t.Run("control", func(t *testing.T) {
		outside := service(shop, "outside", "10.96.3.9")
		outside.Spec.ExternalIPs = []string{"192.0.2.77"}
		s.add(outside)
		r := s.rehearse(s.snapshot(), false, func(ctx context.Context, c client.Client) error {
			svc := &corev1.Service{}
			if err := c.Get(ctx, client.ObjectKeyFromObject(cart), svc); err != nil {
				return err
			}
			if svc.Spec.ClusterIP != "10.96.3.7" {
				return errors.New("service cart was moved although something blocks")
			}
			return nil
		})
		if r.Outcome != Blocked || len(r.Risks.Objections()) == 0 || len(r.Commands) != 1 || r.Commands[0].phase("move").Done > 0 {
			t.Errorf("%s, %+v", r.Outcome, r.Risks)
		}
	})
}

// requireCourse fails the test unless Services moved, came back, moved again and left their old addresses, with every gate on the way.
func requireCourse(t *testing.T, r *Report) {
	t.Helper()
	want := []struct {
		command       string
		phases, gates []string
	}{
		{apply, []string{"extend", "canary", "move"}, []string{"gate/certificates", "gate/kubelets", "gate/api-servers"}},
		{rollback, []string{"return", "restore", "release"}, []string{"gate/kubelets", "gate/api-servers"}},
		{apply, []string{"extend", "move"}, []string{"gate/kubelets", "gate/api-servers"}},
		{finish, []string{"release", "tidy"}, nil},
	}
	if len(r.Commands) != len(want) {
		t.Fatalf("%d commands: %+v", len(r.Commands), r.Commands)
	}
	for i, w := range want {
		c := r.Commands[i]
		if c.Command != w.command || c.Seconds <= 0 {
			t.Errorf("%s in place of %s, in %g s", c.Command, w.command, c.Seconds)
		}
		for _, phase := range w.phases {
			if p := c.phase(phase); p.Done == 0 {
				t.Errorf("%s: phase %s did nothing: %+v", w.command, phase, p)
			}
		}
		for _, step := range w.gates {
			if !slices.ContainsFunc(c.Gates, func(g Gate) bool { return g.Step == step && g.Passed }) {
				t.Errorf("%s: %s was not passed: %+v", w.command, step, c.Gates)
			}
		}
	}
}

// madeFirst is a ConfigMap that every API server makes as it starts, and which a snapshot has of another one.
func madeFirst() client.ObjectKey {
	return client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication"}
}

// stays holds if the rehearsal's API server has what it made itself, in place of what another one made.
func stays(ctx context.Context, c client.Client, other *corev1.ConfigMap) error {
	have := &corev1.ConfigMap{}
	if err := c.Get(ctx, madeFirst(), have); err != nil {
		return err
	}
	if have.UID == other.UID {
		return fmt.Errorf("configmap %s is the snapshot's", have.Name)
	}
	return nil
}

// moved holds once every Service of the rehearsal is in the new range alone, and every pod and Node is as it was.
func moved(ctx context.Context, c client.Client) error {
	services, pods, nodes := &corev1.ServiceList{}, &corev1.PodList{}, &corev1.NodeList{}
	if err := errors.Join(c.List(ctx, services), c.List(ctx, pods, client.InNamespace(shop)), c.List(ctx, nodes)); err != nil {
		return err
	}
	to := netip.MustParsePrefix(newRange)
	for i := range services.Items {
		svc := &services.Items[i]
		if svc.Labels[v1alpha1.LabelRole] != "" {
			return fmt.Errorf("bridge %s/%s is left", svc.Namespace, svc.Name)
		}
		a, err := netip.ParseAddr(svc.Spec.ClusterIP)
		if err == nil && !to.Contains(a) {
			return fmt.Errorf("service %s/%s is at %s", svc.Namespace, svc.Name, a)
		}
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" || len(p.OwnerReferences) == 0 {
			return fmt.Errorf("pod %s does not run as it did: %+v", p.Name, p.Status)
		}
	}
	for i := range nodes.Items {
		if n := &nodes.Items[i]; n.Spec.PodCIDR == "" || len(n.Status.Addresses) != 1 {
			return fmt.Errorf("node %s is not as it was: %+v", n.Name, n.Spec)
		}
	}
	if len(nodes.Items) != 3 || len(pods.Items) < 2 {
		return fmt.Errorf("%d nodes and %d pods", len(nodes.Items), len(pods.Items))
	}
	found := &discoveryv1.EndpointSliceList{}
	if err := c.List(ctx, found, client.InNamespace(shop), client.MatchingLabels{discoveryv1.LabelServiceName: "cart"}); err != nil {
		return err
	}
	if len(found.Items) == 0 || len(found.Items[0].Endpoints) == 0 {
		return errors.New("service cart has no endpoints")
	}
	return nil
}

const (
	// manyVariable is how many Services TestRehearseMany rehearses. Default: 1000.
	manyVariable = "REHEARSE_SERVICES"
	// etcdVariable, if set, has them move in etcd.
	etcdVariable = "REHEARSE_ETCD"
	podsOfEach   = 5
)

// TestRehearseMany measures how long it takes with thousands of Services and five times as many pods.
func TestRehearseMany(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes: make bench RUN=rehearse")
	}
	services := 1000
	if text := os.Getenv(manyVariable); text != "" {
		var err error
		if services, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", manyVariable, err)
		}
	}
	s := newSource(t)
	if os.Getenv(etcdVariable) != "" {
		s.ways = `, strategies: {clusterIP: Etcd}, etcd: {endpoints: ["` + s.Etcd + `"]}`
	}
	var eg errgroup.Group
	eg.SetLimit(atOnce)
	for i := range services {
		eg.Go(func() error {
			svc := keptService(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", 10+i/250, 1+i%250))
			s.keep(schema.GroupVersionResource{Version: "v1", Resource: "services"}, svc)
			s.add(sliceOf(svc, corev1.IPv4Protocol, s.deployment(svc.Name, podsOfEach)))
			return nil
		})
	}
	s.must(eg.Wait())
	r := s.rehearse(s.snapshot(), false, nil)
	if r.Outcome != Done || r.Objects.Lacking > 0 {
		t.Errorf("%s, with errors %q; %d objects not made: %v", r.Outcome, r.Errors, r.Objects.Lacking, r.Objects.Refused)
	}
}
