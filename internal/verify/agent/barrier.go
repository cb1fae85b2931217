package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
)

const (
	// patience is longer than kube-proxy usually takes for a barrier.
	patience = 10 * time.Second
	// mostSentinels bounds those in progress and those remembered. A run makes one.
	mostSentinels = 16
	// clearEvery is the pause between two looks at connection tracking, which may be large.
	clearEvery = time.Second
)

// barrier asks the node's kube-proxy about every sentinel until it is programmed.
type barrier struct {
	// nodes are the node's addresses by family. kube-proxy answers at the sentinel's family, and
	// before Kubernetes 1.35 at IPv4 alone (newServiceHealthServer in
	// pkg/proxy/healthcheck/service_health.go).
	nodes []netip.Addr
	// forget deletes entries to servers; nil if the agent cannot.
	forget func(servers []netip.Addr, rested time.Duration) (left int, err error)
	// poke is called when one is passed.
	poke func()

	mu    sync.Mutex
	asked map[types.UID]*asked
	// passed are the latest, oldest first.
	passed []v1alpha1.BarrierReport
	// more is how many there was no room to ask about.
	more int
}

type asked struct {
	name  string
	since time.Time
	stop  context.CancelFunc
	// why it is not passed; nil if it is.
	why error
}

func (b *barrier) follow(ctx context.Context, sentinels []*corev1.Service) {
	b.mu.Lock()
	defer b.mu.Unlock()
	there := map[types.UID]bool{}
	for _, s := range sentinels {
		_, connects := s.Annotations[v1alpha1.AnnotationConnect]
		there[s.UID] = connects || s.Spec.HealthCheckNodePort != 0
	}
	for uid, a := range b.asked {
		if !there[uid] {
			a.stop()
			delete(b.asked, uid)
		}
	}
	b.more = 0
	for _, s := range sentinels {
		switch {
		case !there[s.UID] || b.asked[s.UID] != nil:
		case len(b.asked) == mostSentinels:
			b.more++
		default:
			ctx, stop := context.WithCancel(ctx)
			a := &asked{name: s.Namespace + "/" + s.Name, since: time.Now(), stop: stop}
			b.asked[s.UID] = a
			go b.pass(ctx, s, a)
		}
	}
}

// pass ends when kube-proxy reports the sentinel and nothing is left to forget, or when it is gone.
func (b *barrier) pass(ctx context.Context, sentinel *corev1.Service, a *asked) {
	defer a.stop()
	// The pause grows to half a second: kube-proxy gathers changes for a second.
	pauses := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 1.3, Cap: 500 * time.Millisecond, Steps: 20}
	c := &clearing{}
	_ = pauses.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := b.ask(ctx, sentinel)
		if err == nil {
			err = b.clear(sentinel, c)
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		a.why = err
		if err != nil {
			return false, nil
		}
		b.passed = append(b.passed, v1alpha1.BarrierReport{Sentinel: string(sentinel.UID), PassedAt: metav1.NowMicro()})
		b.passed = b.passed[max(0, len(b.passed)-mostSentinels):]
		b.poke()
		return true, nil
	})
}

// restFor is how long an entry must rest before deletion, by how long that has been tried. DNS
// clients wait five seconds for answers, and one that always asks from one port never rests so
// long.
func restFor(tried time.Duration) time.Duration {
	switch {
	case tried < 15*time.Second:
		return 6 * time.Second
	case tried < 30*time.Second:
		return 2 * time.Second
	}
	return 0
}

// clear deletes entries of datagrams to the servers that the sentinel wants forgotten, where
// kube-proxy sends no new ones by now. Only replumb and administrators write sentinels: others
// could delete any client's entries.
func (b *barrier) clear(sentinel *corev1.Service, c *clearing) error {
	var servers []netip.Addr
	for text := range strings.SplitSeq(sentinel.Annotations[v1alpha1.AnnotationForget], ",") {
		if a := parse(text); a.IsValid() {
			servers = append(servers, a)
		}
	}
	if len(servers) == 0 {
		return nil
	}
	if b.forget == nil {
		return fmt.Errorf("this agent cannot change connection tracking")
	}
	now := time.Now()
	if c.since.IsZero() {
		c.since = now
	}
	if now.Sub(c.latest) < clearEvery {
		return c.err
	}
	left, err := b.forget(servers, restFor(now.Sub(c.since)))
	if err == nil && left > 0 {
		err = fmt.Errorf(
			"clients use %d entries of connection tracking that lead to %s", left,
			sentinel.Annotations[v1alpha1.AnnotationForget],
		)
	}
	c.latest, c.err = now, err
	return err
}

type clearing struct {
	since, latest time.Time
	err           error
}

func (b *barrier) ask(ctx context.Context, sentinel *corev1.Service) error {
	if pairs, connects := sentinel.Annotations[v1alpha1.AnnotationConnect]; connects {
		return connectAll(ctx, sentinel, bridge.ParsePairs(pairs))
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var failed error
	for _, node := range b.nodes {
		body, err := get(ctx, net.JoinHostPort(node.String(), strconv.Itoa(int(sentinel.Spec.HealthCheckNodePort))), nil)
		if err == nil && bridge.Passed(body, sentinel) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("kube-proxy answers %.100q", body)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// connectAll connects to a sentinel, and to Services at the addresses at which they have to answer
// beside their own. One that answers at neither has no endpoint to lead to.
func connectAll(ctx context.Context, sentinel *corev1.Service, pairs []bridge.AddressPair) error {
	if len(sentinel.Spec.Ports) == 0 {
		return errors.New("it has no port")
	}
	own := netip.AddrPortFrom(clusterIP(sentinel), uint16(sentinel.Spec.Ports[0].Port)) //nolint:gosec // a port
	if err := dial(ctx, own); err != nil {
		return err
	}
	var eg errgroup.Group
	eg.SetLimit(connectsAtOnce)
	for _, p := range pairs {
		eg.Go(func() error {
			err := dial(ctx, p.Beside)
			if err == nil || dial(ctx, p.At) == nil {
				return err
			}
			return nil
		})
	}
	return eg.Wait()
}

func dial(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

func (b *barrier) report() ([]v1alpha1.BarrierReport, []error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var late []error
	if b.more > 0 {
		late = append(late, fmt.Errorf("%d sentinels are not asked about: there are more than %d", b.more, mostSentinels))
	}
	for _, a := range b.asked {
		if a.why != nil && time.Since(a.since) > patience {
			late = append(late, fmt.Errorf("sentinel %s is not passed yet: %w", a.name, a.why))
		}
	}
	return slices.Clone(b.passed), late
}

func readGood(response *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d: %.100q", response.StatusCode, body)
	}
	return body, nil
}

func tell(conn net.Conn, connected func(network string, local, remote netip.AddrPort)) {
	local, errLocal := netip.ParseAddrPort(conn.LocalAddr().String())
	remote, errRemote := netip.ParseAddrPort(conn.RemoteAddr().String())
	if connected != nil && errLocal == nil && errRemote == nil {
		connected(conn.LocalAddr().Network(), local, remote)
	}
}
