package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/installation"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	// operatedServices are those of the shop that stand before no Deployment of their own; with the others they are fifty and more.
	operatedServices = 46
	// operatorDeaths is how many times the replica that leads is killed.
	operatorDeaths = 10
	// apiAway is how long the API server answers nothing.
	apiAway = 2 * time.Minute
	// takenOver is within how long another replica carries on: the lead has to lapse, and after it the lock.
	takenOver = 4 * time.Minute
	operated  = "15m"
)

// TestOperator moves fifty Services by what people have in a cluster: the output of replumb install, a Migration, and kubectl. On the way the
// pod of the operator that leads is killed ten times, a node is drained of the operator, and the API server answers nothing for two minutes.
// No request is lost, there and for good. The control deletes and recreates a Service under the same traffic.
func TestOperator(t *testing.T) {
	l := bringUp(t, named("e2e-operator"))
	forgetNamesSoon(t, l)
	o := newOperated(t, l, operatedServices)
	if n := len(shopServices(t, l)); n < 50 {
		t.Fatalf("there are %d Services", n)
	}
	o.apply(replumb(t, l, "install", "--image", workload.ReplumbImage))
	o.kubectl("rollout", "status", "-n", v1alpha1.SystemNamespace, "deployment/"+installation.Operator, "--timeout=2m")
	moved := o.s.during(t, "a move by the operator, which is killed again and again", func() {
		o.apply(o.migration("operated", newRange))
		for n := range operatorDeaths {
			o.awaitMoved(3 * (n + 1))
			o.killLeader()
			switch n {
			case operatorDeaths / 3:
				o.drainLeader()
			case operatorDeaths / 2:
				o.suspendAPI(apiAway)
			}
		}
		o.kubectl("wait", "--for=condition=Ready", "migration/operated", "--timeout="+operated)
	})
	moved.requireNothingLost(t, traffic.All)
	moved.requireEnough(t, l.NodeNames())
	requireAllIn(t, l, newRange)

	o.kubectl("patch", "migration", "operated", "--type=merge", "-p", `{"spec":{"desired":"Finished"}}`)
	o.kubectl("annotate", "migration", "operated", "replumb.dev/approve="+o.finishWord("operated"))
	waiting := o.s.during(t, "finish, which waits for clients of old addresses", func() {
		o.kubectl("wait", "--for=jsonpath={.status.stage}=soak", "migration/operated", "--timeout=5m")
	})
	waiting.requireNothingLost(t, traffic.All)
	o.callByNameAlone()
	ended := o.s.during(t, "the end of finish", func() {
		o.kubectl("wait", "--for=jsonpath={.status.phase}=Finished", "migration/operated", "--timeout=5m")
	})
	ended.requireNothingLost(t, traffic.All)
	requireNaiveLoses(t, l)
	replumb(t, l, "uninstall", "--yes")
	requireNoTrace(t, l)
}

// inCluster is a cluster in which the operator does the work.
type inCluster struct {
	*testing.T
	l *lab.Lab
	s *shop
	// callees are the Services that clients call.
	callees []traffic.Callee
}

// newOperated opens the shop with so many Services more than it has, and has clients on every node call it.
func newOperated(t *testing.T, l *lab.Lab, further int) *inCluster {
	t.Helper()
	objects := []runtime.Object{workload.Namespace(shopNamespace)}
	for _, echo := range workload.Shop(shopNamespace) {
		objects = append(objects, echo.Objects()...)
	}
	callees, err := start(t.Context(), l, shopNamespace, append(objects, workload.FurtherServices(shopNamespace, further)...))
	must(t, err)
	watch, err := traffic.Start(
		t.Context(),
		l.Client(),
		l.NodeNames(),
		traffic.Call(shopNamespace, callees, rates()).AndKeep(callees, rates()),
	)
	must(t, err)
	t.Cleanup(watch.Stop)
	o := &inCluster{T: t, l: l, s: &shop{watch: watch}, callees: callees}
	o.s.steady(t)
	return o
}

// callByNameAlone removes the clients of old addresses, for whom finish waits, and has others call names.
func (o *inCluster) callByNameAlone() {
	o.Helper()
	o.s.watch.Stop()
	removeClients(o.T, o.l, shopNamespace)
	calls := traffic.Call(shopNamespace, o.callees, rates())
	delete(calls.Targets, traffic.ByOldAddress)
	watch, err := traffic.Start(o.Context(), o.l.Client(), o.l.NodeNames(), calls)
	must(o, err)
	o.Cleanup(watch.Stop)
	o.s = &shop{watch: watch}
	o.s.steady(o.T)
}

// migration is one of all Services of the shop, three at a time.
func (o *inCluster) migration(name, to string) string {
	return fmt.Sprintf(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: %s}
spec:
  desired: Applied
  serviceCIDR: {to: [%s], drain: %s, clusterServices: Stay, refresh: {mode: Report}}
  batch: {size: 3, settle: 1s}
`, name, to, shortDrain)
}

// kubectl runs kubectl to its successful end.
func (o *inCluster) kubectl(args ...string) string {
	o.Helper()
	return o.feed("", args...)
}

// finishWord approves that this attempt is finished.
func (o *inCluster) finishWord(name string) string {
	o.Helper()
	var m v1alpha1.Migration
	if err := json.Unmarshal([]byte(o.kubectl("get", "migration", name, "-o", "json")), &m); err != nil {
		o.Fatal(err)
	}
	return migration.FinishWord(&m)
}

// apply gives objects to kubectl apply.
func (o *inCluster) apply(objects string) {
	o.Helper()
	o.feed(objects, "apply", "-f", "-")
}

func (o *inCluster) feed(in string, args ...string) string {
	o.Helper()
	cmd := exec.CommandContext(o.Context(), o.l.Kubectl(), append(args, "--kubeconfig", o.l.Kubeconfig())...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(in), &stderr
	out, err := cmd.Output()
	if err != nil {
		o.report()
		o.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return string(out)
}

// report logs what the operator and its Migrations say.
func (o *inCluster) report() {
	for _, args := range [][]string{
		{"get", "migrations", "-o", "yaml"},
		{"get", "pods", "-n", v1alpha1.SystemNamespace, "-o", "wide"},
		{"logs", "-n", v1alpha1.SystemNamespace, "deployment/" + installation.Operator, "--all-pods", "--tail=40"},
	} {
		out, err := exec.CommandContext(context.WithoutCancel(o.Context()), o.l.Kubectl(),
			append(args, "--kubeconfig", o.l.Kubeconfig())...).CombinedOutput()
		o.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// awaitMoved waits until at least n Services have moved.
func (o *inCluster) awaitMoved(n int) {
	o.Helper()
	o.kubectl("wait", "--for=create", "migration/operated", "--timeout=30s")
	o.await(fmt.Sprintf("%d Services have moved", n), func() error {
		there := 0
		services, err := o.l.Client().CoreV1().Services(shopNamespace).List(o.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range services.Items {
			svc := &services.Items[i]
			if svc.Labels[v1alpha1.LabelRole] != v1alpha1.RoleBridge && within(newRange, svc.Spec.ClusterIP) {
				there++
			}
		}
		if there < n {
			return fmt.Errorf("%d have", there)
		}
		return nil
	})
}

func within(cidr, address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && netip.MustParsePrefix(cidr).Contains(a)
}

// await is eventually, for what takes a lead and a lock to lapse; if it does not come, the operator is heard.
func (o *inCluster) await(what string, condition func() error) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), takenOver)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			o.report()
			o.Fatalf("%s: still not so: %v", what, err)
		}
	}
}

// leader is the pod of the replica that leads, once there is one that runs.
func (o *inCluster) leader() (leader *corev1.Pod) {
	o.Helper()
	o.await("a replica leads", func() error {
		lead, err := o.l.Client().
			CoordinationV1().
			Leases(v1alpha1.SystemNamespace).
			Get(o.Context(), migrations.OperatorLease, metav1.GetOptions{})
		if err != nil {
			return err
		}
		name := ptr.Deref(lead.Spec.HolderIdentity, "")
		if name == "" {
			return errors.New("no replica leads")
		}
		leader, err = o.l.Client().CoreV1().Pods(v1alpha1.SystemNamespace).Get(o.Context(), name, metav1.GetOptions{})
		return err
	})
	return leader
}

// killLeader ends the process of the replica that leads with SIGKILL, and removes its pod.
func (o *inCluster) killLeader() {
	o.Helper()
	pod := o.leader()
	o.await(pod.Name+" has a process to kill", func() error { return killPod(pod.Name) })
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	if err := o.l.Client().CoreV1().Pods(pod.Namespace).Delete(o.Context(), pod.Name, now); err != nil && !apierrors.IsNotFound(err) {
		o.Fatal(err)
	}
	o.Logf("killed %s on %s", pod.Name, pod.Spec.NodeName)
}

// killPod ends the process of a pod of the operator with SIGKILL.
func killPod(name string) error {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return err
	}
	for _, file := range environments {
		environment, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(environment, []byte("POD_NAME="+name+"\x00")) {
			continue // another process, or one that has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return err
		}
		return unix.Kill(pid, unix.SIGKILL)
	}
	return errors.New("no process has its name")
}

// drainLeader drains the node of the replica that leads, of what is the operator's, and opens it again once that has gone.
func (o *inCluster) drainLeader() {
	o.Helper()
	pod := o.leader()
	o.kubectl("drain", pod.Spec.NodeName, "--pod-selector="+installation.LabelComponent+"="+installation.Argument, "--ignore-daemonsets",
		"--delete-emptydir-data", "--timeout=2m")
	o.Logf("drained %s of %s", pod.Spec.NodeName, pod.Name)
	o.awaitGone(pod)
	o.kubectl("uncordon", pod.Spec.NodeName)
}

func (o *inCluster) awaitGone(pod *corev1.Pod) {
	o.Helper()
	o.await(pod.Name+" is gone", func() error {
		_, err := o.l.Client().CoreV1().Pods(pod.Namespace).Get(o.Context(), pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// suspendAPI has the API server answer nothing for some time, while connections to it stay open.
func (o *inCluster) suspendAPI(away time.Duration) {
	o.Helper()
	resume := suspend(o.T, o.l, o.l.ControlPlanes()[0], "kube-apiserver")
	defer resume()
	o.Logf("the API server is away for %s", away)
	select {
	case <-time.After(away):
	case <-o.Context().Done():
	}
}
