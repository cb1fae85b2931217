package e2e

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

const (
	manyServices, fewerServices = 3000, 300
	crowdNamespace              = "crowd"
	// crowdPatience is less than the second after which a first packet that is lost is sent again.
	crowdPatience = 800 * time.Millisecond
)

// TestManyServices moves thousands of Services in etcd, and connects to each from the network of every node, at its old and its new address, as
// soon as apply has ended: all have to answer at once, since apply has proven the rules of every node. The control connects to Services right
// after they were created, before kube-proxies know them. Objects are counted meanwhile.
func TestManyServices(t *testing.T) {
	n := manyServices
	if testing.Short() {
		n = fewerServices
	}
	l := bringUp(t, named("e2e-many"))
	c := newCrowd(t, l)
	before := c.count("before")

	began := time.Now()
	last := c.create(n)
	created := time.Now()
	if missing := c.unanswered(last[len(last)-5:]); missing == 0 {
		t.Error("control: Services that were just created answered on every node: a rule that is not there would not be seen")
	}
	eventually(t, 5*time.Minute, func() error { return c.requireAnswers(last) })
	t.Logf("%d Services created in %s; the last node had the last rule %s later", n, rounded(created.Sub(began)), rounded(time.Since(created)))
	c.count("created")

	file := writeSpec(t, "many", `
  serviceCIDR: {to: [%s], drain: %s, clusterServices: Stay, refresh: {mode: Report}, strategies: {clusterIP: Etcd}, %s}
  batch: {size: 500, settle: 1s}
`, newRange, shortDrain, storedEtcd)
	on := onControlPlane(t, l)
	began = time.Now()
	succeed(t, on(t, "apply", "-f", file))
	t.Logf("apply ended after %s", rounded(time.Since(began)))
	both := c.addresses()
	if len(both) != 2*n {
		t.Errorf("%d Services have %d addresses, not two each", n, len(both))
	}
	if missing := c.unanswered(both); missing > 0 {
		t.Errorf("%d of %d connections were not answered when apply had ended", missing, len(both)*len(l.NodeNames()))
	}
	requireServicesIn(t, servicesOf(t, l, crowdNamespace), newRange)
	c.count("between apply and finish")

	began = time.Now()
	succeed(t, on(t, "finish", "many", "--yes"))
	t.Logf("finish ended after %s", rounded(time.Since(began)))
	if after := c.count("finished"); after.held != 0 || after.services != before.services+n {
		t.Errorf("finish leaves %+v, and there were %+v and %d Services", after, before, n)
	}
	removeNamespaces(t, l, crowdNamespace)
	requireNoTrace(t, l)
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// crowd are many Services in front of one Deployment.
type crowd struct {
	*testing.T
	l    *lab.Lab
	echo workload.Echo
}

func newCrowd(t *testing.T, l *lab.Lab) *crowd {
	t.Helper()
	c := &crowd{T: t, l: l, echo: workload.Echo{Namespace: crowdNamespace, Name: "crowd", PartOf: crowdNamespace, Replicas: 2}}
	_, err := start(t.Context(), l, crowdNamespace, append([]runtime.Object{workload.Namespace(crowdNamespace)}, c.echo.Objects()...))
	must(t, err)
	must(t, l.Client().CoreV1().Services(crowdNamespace).Delete(t.Context(), c.echo.Name, metav1.DeleteOptions{}))
	return c
}

// create makes n Services, and returns their addresses.
func (c *crowd) create(n int) []string {
	c.Helper()
	addresses := make([]string, n)
	all := c.l.Client().CoreV1().Services(crowdNamespace)
	var eg errgroup.Group
	eg.SetLimit(16)
	for i := range n {
		eg.Go(func() error {
			svc := c.echo.Service()
			svc.Name, svc.Spec.Ports = fmt.Sprintf("crowd-%04d", i), svc.Spec.Ports[:1]
			made, err := all.Create(c.Context(), svc, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			addresses[i] = made.Spec.ClusterIP
			return nil
		})
	}
	must(c, eg.Wait())
	return addresses
}

// addresses are those at which Services answer, those of their own and those that they keep.
func (c *crowd) addresses() (all []string) {
	c.Helper()
	for _, svc := range servicesOf(c.T, c.l, crowdNamespace) {
		all = append(append(all, svc.Spec.ClusterIP), svc.Spec.ExternalIPs...)
	}
	return all
}

// unanswered are the connections that a node could not make to an address, each tried once.
func (c *crowd) unanswered(addresses []string) (missing int) {
	c.Helper()
	for _, node := range c.l.NodeNames() {
		c.inside(node, func(ctx context.Context) {
			for _, a := range addresses {
				if !answers(ctx, a) {
					missing++
				}
			}
		})
	}
	return missing
}

// requireAnswers fails at the first address that a node cannot connect to, the last first.
func (c *crowd) requireAnswers(addresses []string) (err error) {
	c.Helper()
	for _, node := range c.l.NodeNames() {
		c.inside(node, func(ctx context.Context) {
			for i := len(addresses) - 1; i >= 0 && err == nil; i-- {
				if !answers(ctx, addresses[i]) {
					err = fmt.Errorf("node %s gets no answer at %s", node, addresses[i])
				}
			}
		})
	}
	return err
}

func (c *crowd) inside(node string, do func(ctx context.Context)) {
	c.Helper()
	m, err := c.l.Machine(node)
	must(c, err)
	must(c, m.Inside(c.Context(), func() { do(c.Context()) }))
}

// answers reports whether a connection comes about before its first packet would be sent again.
func answers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, crowdPatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp4", net.JoinHostPort(address, strconv.Itoa(workload.HTTPPort)))
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// objects are how many there are of each kind that replumb may add to.
type objects struct{ services, slices, addresses, held int }

func (c *crowd) count(when string) objects {
	c.Helper()
	ctx, client := c.Context(), c.l.Client()
	services, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	must(c, err)
	slices, err := client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	must(c, err)
	addresses, err := client.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	must(c, err)
	o := objects{len(services.Items), len(slices.Items), len(addresses.Items), len(heldAddresses(c.T, c.l))}
	bridges := 0
	for _, svc := range services.Items {
		if svc.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge {
			bridges++
		}
	}
	c.Logf("%s: %d Services, of which %d are bridges, %d EndpointSlices, %d IPAddresses, of which %d are held", when, o.services, bridges, o.slices, o.addresses, o.held)
	return o
}
