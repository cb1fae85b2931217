package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

const (
	affineNamespace = "affine"
	// calling is for how long addresses are called, 20 times a second.
	calling = 10 * time.Second
)

// TestOneOwner calls Services that have moved, with no replumb running: each address leads to one of two pods only, although every
// kube-proxy syncs all the time, and the new address of a Service without selector to where its endpoints say. The control has a bridge
// answer at both addresses, as in the middle of a hop, and sees callers change pods.
func TestOneOwner(t *testing.T) {
	l := bringUp(t, named("e2e-owner"))
	a := startAffine(t, l)
	file := writeMigration(t, affineNamespace, "172.29.0.0/16", "overlap: Bridge", shortDrain)
	replumb(t, l, "apply", "-f", file)
	defer replumb(t, l, "rollback", affineNamespace, "--yes")
	loyal, outside := a.moved("loyal"), a.moved("outside")

	stop := a.unrest()
	defer stop()
	for _, at := range []string{loyal.was, loyal.is} {
		for node, pods := range a.call(at) {
			if n := changes(pods); n > 0 {
				t.Errorf("%s changed pods %d times in %d requests to %s", node, n, len(pods), at)
			}
		}
	}

	to := a.pods()[1]
	a.point(to)
	for node, pods := range a.call(outside.is) {
		if wrong := len(pods) - count(pods, to.Name); wrong > 0 {
			t.Errorf("%d of %d requests from %s to the new address %s did not reach pod %s", wrong, len(pods), node, outside.is, to.Name)
		}
	}

	a.widen(loyal)
	flips := 0
	for node, pods := range a.call(loyal.is) {
		t.Logf("control: with a bridge at both addresses, %s changed pods %d times in %d requests", node, changes(pods), len(pods))
		flips += changes(pods)
	}
	if flips == 0 {
		t.Error("the control saw no change of pods: the test sees nothing")
	}
}

// affine is two Services in front of two pods on each node: loyal has session affinity, outside no selector.
type affine struct {
	*testing.T
	l *lab.Lab
	// was is where the Services were before they moved.
	was map[string]string
}

// movedService is a Service with its addresses.
type movedService struct {
	*corev1.Service
	was, is string
}

func startAffine(t *testing.T, l *lab.Lab) *affine {
	t.Helper()
	a := &affine{T: t, l: l, was: map[string]string{}}
	t.Cleanup(func() { removeNamespaces(t, l, affineNamespace) })
	echo := workload.Echo{Namespace: affineNamespace, Name: "loyal", PartOf: affineNamespace, Replicas: 4}
	loyal, outside := echo.Service(), echo.Service()
	loyal.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	outside.Name, outside.Spec.Selector = "outside", nil
	objects := []runtime.Object{workload.Namespace(affineNamespace), echo.Deployment(), loyal, outside}
	if _, err := start(t.Context(), l, affineNamespace, objects); err != nil {
		t.Fatal(err)
	}
	a.point(a.pods()[0])
	for _, name := range []string{"loyal", "outside"} {
		a.was[name] = a.service(name).Spec.ClusterIP
	}
	return a
}

func (a *affine) service(name string) *corev1.Service {
	a.Helper()
	svc, err := a.l.Client().CoreV1().Services(affineNamespace).Get(a.Context(), name, metav1.GetOptions{})
	must(a, err)
	return svc
}

func (a *affine) moved(name string) movedService {
	a.Helper()
	svc := a.service(name)
	if svc.Spec.ClusterIP == a.was[name] {
		a.Fatalf("service %s has not moved", name)
	}
	return movedService{svc, a.was[name], svc.Spec.ClusterIP}
}

func (a *affine) pods() []corev1.Pod {
	a.Helper()
	list, err := a.l.Client().CoreV1().Pods(affineNamespace).List(a.Context(), metav1.ListOptions{})
	must(a, err)
	return list.Items
}

// point has the Service without selector lead to one pod, and waits until its new or only address does from every node.
func (a *affine) point(to corev1.Pod) {
	a.Helper()
	slices := a.l.Client().DiscoveryV1().EndpointSlices(affineNamespace)
	name, port := "http", int32(8080)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "outside", Labels: map[string]string{discoveryv1.LabelServiceName: "outside", discoveryv1.LabelManagedBy: "example.com"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{to.Status.PodIP}, NodeName: &to.Spec.NodeName}},
	}
	_ = slices.Delete(a.Context(), slice.Name, metav1.DeleteOptions{})
	if _, err := slices.Create(a.Context(), slice, metav1.CreateOptions{}); err != nil {
		a.Fatal(err)
	}
	eventually(a.T, settled, func() error {
		for _, node := range a.l.NodeNames() {
			got, err := a.ask(node, a.service("outside").Spec.ClusterIP)
			if err == nil && got != to.Name {
				err = fmt.Errorf("%s is led to pod %s, not to %s", node, got, to.Name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// ask is the pod that answers a node at an address.
func (a *affine) ask(node, address string) (string, error) {
	out, err := a.l.Exec(a.Context(), node, "curl", "--silent", "--show-error", "--max-time", "5", "http://"+address+"/")
	if err != nil {
		return "", err
	}
	var by probe.EchoIdentity
	err = json.Unmarshal(bytes.TrimSpace(out), &by)
	return by.Pod, err
}

// call calls an address from every node, and returns which pods answered, in order.
func (a *affine) call(address string) map[string][]string {
	a.Helper()
	loop := fmt.Sprintf("for i in $(seq %d); do curl --silent --show-error --max-time 5 http://%s/ || exit 1; echo; sleep 0.05; done",
		int(calling.Seconds()*20), address)
	answers, mu := map[string][]string{}, sync.Mutex{}
	var running sync.WaitGroup
	for _, node := range a.l.NodeNames() {
		running.Go(func() {
			out, err := a.l.Exec(a.Context(), node, "bash", "-c", loop)
			if err != nil {
				a.Errorf("%s: %v", node, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(string(out)) {
				var by probe.EchoIdentity
				if json.Unmarshal([]byte(line), &by) == nil {
					answers[node] = append(answers[node], by.Pod)
				}
			}
		})
	}
	running.Wait()
	for _, node := range a.l.NodeNames() {
		if got, least := len(answers[node]), int(calling.Seconds())*10; got < least {
			a.Errorf("%s had %d answers from %s, which prove little; want %d", node, got, address, least)
		}
	}
	return answers
}

// changes is how often the answering pod was another than before.
func changes(pods []string) (n int) {
	for i := 1; i < len(pods); i++ {
		if pods[i] != pods[i-1] {
			n++
		}
	}
	return n
}

func count(pods []string, name string) (n int) {
	for _, p := range pods {
		if p == name {
			n++
		}
	}
	return n
}

// unrest has every kube-proxy sync once a second, by EndpointSlices of others, until stop is called.
func (a *affine) unrest() (stop func()) {
	ctx, cancel := context.WithCancel(a.Context())
	done := make(chan struct{})
	slices := a.l.Client().DiscoveryV1().EndpointSlices(affineNamespace)
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Name: "unrest", Labels: map[string]string{discoveryv1.LabelServiceName: "unrest"}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("192.0.2.%d", 1+i%250)}}},
			}
			if _, err := slices.Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
				_, _ = slices.Create(ctx, slice, metav1.CreateOptions{})
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// widen has the bridge of a Service that has moved answer at both addresses.
func (a *affine) widen(of movedService) {
	a.Helper()
	mode := corev1.LoadBalancerIPModeVIP
	status, err := json.Marshal(map[string]any{"status": map[string]any{"loadBalancer": corev1.LoadBalancerStatus{
		Ingress: []corev1.LoadBalancerIngress{{IP: of.was, IPMode: &mode}, {IP: of.is, IPMode: &mode}},
	}}})
	must(a, err)
	_, err = a.l.Client().CoreV1().Services(affineNamespace).Patch(a.Context(), bridge.Name(of.Name, of.UID), types.MergePatchType, status,
		metav1.PatchOptions{FieldManager: v1alpha1.FieldManager}, "status")
	must(a, err)
}
