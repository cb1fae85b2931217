package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/test/soak/model"
)

const (
	apiServer = "kube-apiserver"
	// awayFor is how long an API server is gone for: until the Service kubernetes no longer leads to it, and longer than what is lost
	// is blamed on its end.
	awayFor = blameFor + 40*time.Second
	// backWithin is how long what was ended may take to be of use again.
	backWithin = 4 * time.Minute
)

// trouble is what goes wrong in the cluster meanwhile: one thing at a time. Who holds its lock has none.
type trouble struct {
	sync.Mutex
	lab    *lab.Lab
	client kubernetes.Interface
	random *rand.Rand
	// mortal is the node that ends without notice, now and then. No pod of what is probed is there, and no client.
	mortal string

	counts sync.Mutex
	// kills are when API servers were killed.
	kills []time.Time
	made  map[string]int
	last  []string
}

// misfortune is a kind of trouble, with how often it is drawn.
type misfortune struct {
	weight int
	name   string
	make   func(context.Context) error
}

func (t *trouble) kinds() []misfortune {
	return []misfortune{
		{4, "api-server-restarted", t.restartAPIServer},
		{3, "api-server-killed", t.killAPIServer},
		{2, "api-server-away", t.apiServerAway},
		{3, "kubelet-restarted", t.restartKubelet},
		{2, "containerd-restarted", t.restartContainerd},
		{3, "node-restarted", t.restartNode},
		{2, "node-replaced", t.replaceNode},
		{6, "helper-killed", t.killHelper},
	}
}

// come has one trouble after the other, with a pause before each, until the context ends.
func (t *trouble) come(ctx context.Context, pause func() time.Duration) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause()):
		}
		if err := t.one(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (t *trouble) one(ctx context.Context) error {
	t.Lock()
	defer t.Unlock()
	kinds := t.kinds()
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := t.random.IntN(total)
	at := slices.IndexFunc(kinds, func(k misfortune) bool { n -= k.weight; return n < 0 })
	k := kinds[at]
	t.counts.Lock()
	t.made[k.name]++
	t.counts.Unlock()
	t.remember(k.name)
	if err := k.make(ctx); err != nil {
		return fmt.Errorf("trouble %s: %w", k.name, err)
	}
	return nil
}

func (t *trouble) remember(name string) {
	t.counts.Lock()
	defer t.counts.Unlock()
	t.last = append(t.last, clock(time.Now())+" "+name)
	t.last = t.last[max(0, len(t.last)-remembered/4):]
}

func (t *trouble) killed() {
	t.counts.Lock()
	defer t.counts.Unlock()
	t.kills = append(t.kills, time.Now())
}

// counted are how often there was trouble, of all kinds, when API servers were killed, and what came last.
func (t *trouble) counted() (made int, kills []time.Time, last []string) {
	t.counts.Lock()
	defer t.counts.Unlock()
	for _, n := range t.made {
		made += n
	}
	return made, slices.Clone(t.kills), slices.Clone(t.last)
}

func (t *trouble) anyOf(names []string) string { return names[t.random.IntN(len(names))] }

// restartAPIServer ends one gracefully, as an operator's tooling does: nothing may be lost.
func (t *trouble) restartAPIServer(ctx context.Context) error {
	return t.lab.ControlPlaneNodes().RestartAPIServers(ctx, nil, nil, t.anyOf(t.lab.ControlPlanes()))
}

// killAPIServer ends one at once. It is started again at once.
func (t *trouble) killAPIServer(ctx context.Context) error {
	name := t.anyOf(t.lab.ControlPlanes())
	if err := t.kill(ctx, name, apiServer); err != nil {
		return err
	}
	return t.lab.ControlPlaneNodes().WaitAPIServers(ctx)
}

// apiServerAway has one gone for a while, as when its machine is replaced.
func (t *trouble) apiServerAway(ctx context.Context) error {
	name := t.anyOf(t.lab.ControlPlanes())
	m, err := t.lab.Machine(name)
	if err != nil {
		return err
	}
	program, err := m.Program(ctx, apiServer)
	if err != nil {
		return err
	}
	if err := t.kill(ctx, name, apiServer); err != nil {
		return err
	}
	if err := m.Stop(ctx, apiServer); err != nil { // which would be started again
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(awayFor):
	}
	back := context.WithoutCancel(ctx) // or the lab has one less for good
	if err := m.Run(back, program); err != nil {
		return err
	}
	return t.lab.ControlPlaneNodes().WaitAPIServers(ctx)
}

// kill ends a program on a machine with SIGKILL.
func (t *trouble) kill(ctx context.Context, machine, program string) error {
	m, err := t.lab.Machine(machine)
	if err != nil {
		return err
	}
	info, err := m.Info(ctx)
	if err != nil {
		return err
	}
	for _, p := range info.Programs {
		if p.Name != program {
			continue
		}
		if p.PID == 0 {
			return nil // it has ended, and is about to be started again
		}
		if program == apiServer {
			t.killed()
		}
		if err := unix.Kill(p.PID, unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil
	}
	return fmt.Errorf("%s does not run on %s", program, machine)
}

func (t *trouble) restartKubelet(ctx context.Context) error {
	return t.lab.Workers().RestartKubelets(ctx, netip.Addr{}, t.anyOf(t.lab.NodeNames()))
}

// restartContainerd ends it gracefully and starts it again: pods go on meanwhile.
func (t *trouble) restartContainerd(ctx context.Context) error {
	node := t.anyOf(t.lab.NodeNames())
	m, err := t.lab.Machine(node)
	if err != nil {
		return err
	}
	program, err := m.Program(ctx, "containerd")
	if err != nil {
		return err
	}
	if err := m.Run(ctx, program); err != nil {
		return err
	}
	return t.waitRenewed(ctx, node)
}

// waitRenewed waits until a kubelet that went on all the time says so. It does not report the state of its node again while that is the same,
// for five minutes (nodeStatusReportFrequency of KubeletConfiguration).
func (t *trouble) waitRenewed(ctx context.Context, node string) error {
	since := time.Now()
	return until(ctx, backWithin, "node "+node, func(ctx context.Context) error {
		lease, err := t.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
		if err == nil && (lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(since)) {
			err = errors.New("its lease is not renewed")
		}
		return err
	})
}

// restartNode ends all that runs on the mortal node at once, its pods included.
func (t *trouble) restartNode(ctx context.Context) error {
	for _, program := range []string{"kubelet", "kube-proxy", "containerd"} {
		if err := t.kill(ctx, t.mortal, program); err != nil {
			return err
		}
	}
	if err := t.endPods(ctx, t.mortal); err != nil {
		return err
	}
	return t.waitNode(ctx, t.mortal)
}

// replaceNode ends the mortal node for good, and has another join.
func (t *trouble) replaceNode(ctx context.Context) error {
	if err := t.lab.Workers().Remove(ctx, t.mortal); err != nil {
		return err
	}
	err := persist(ctx, func(ctx context.Context) error {
		return ignoreNotFound(t.client.CoreV1().Nodes().Delete(ctx, t.mortal, metav1.DeleteOptions{}))
	})
	if err == nil {
		err = t.endPods(ctx, t.mortal)
	}
	if err != nil {
		return err
	}
	return t.join(ctx)
}

// join adds a mortal node. The taint is for all that runs there already, too.
func (t *trouble) join(ctx context.Context) error {
	proxy := []lab.ProxyMode{lab.IPTables, lab.NFTables}[t.random.IntN(2)]
	member, err := t.lab.Workers().Add(ctx, lab.Joining{Proxy: proxy})
	if err != nil {
		return err
	}
	t.mortal = member.Name
	return persist(ctx, func(ctx context.Context) error {
		node, err := t.client.CoreV1().Nodes().Get(ctx, member.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: model.Taint, Value: "true", Effect: corev1.TaintEffectNoExecute})
		_, err = t.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// endPods ends those of a node at once.
func (t *trouble) endPods(ctx context.Context, node string) error {
	return persist(ctx, func(ctx context.Context) error {
		pods, err := t.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if err := t.endPod(ctx, &p); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *trouble) endPod(ctx context.Context, p *corev1.Pod) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	return ignoreNotFound(t.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, now))
}

// killHelper ends at once one of the pods by which replumb keeps the overlap up, if there are any.
func (t *trouble) killHelper(ctx context.Context) error {
	n := t.random.Uint32()
	return persist(ctx, func(ctx context.Context) error {
		pods, err := t.client.CoreV1().Pods(v1alpha1.SystemNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		helpers := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
			return !slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "ReplicaSet" })
		})
		if len(helpers) == 0 {
			return nil
		}
		slices.SortFunc(helpers, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		p := &helpers[int(n)%len(helpers)]
		t.remember("killed pod " + p.Name)
		return t.endPod(ctx, p)
	})
}

func (t *trouble) waitNode(ctx context.Context, name string) error {
	// A Node that has not heard of the end of its kubelet is Ready for a while yet: it must have reported since.
	since := time.Now().Truncate(time.Second)
	return until(ctx, backWithin, "node "+name, func(ctx context.Context) error {
		node, err := t.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since) {
				return nil
			}
		}
		return errors.New("it is not ready")
	})
}

func (t *trouble) String() string {
	t.counts.Lock()
	defer t.counts.Unlock()
	var parts []string
	for name, n := range t.made {
		parts = append(parts, name+"="+strconv.Itoa(n))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
