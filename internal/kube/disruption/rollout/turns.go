package rollout

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

const (
	// pause is how long an owner is left alone after a refusal that the watch did not show.
	pause = 200 * time.Millisecond
	// tick is how often a drain looks at its node when it hears nothing.
	tick = time.Second
	// keepAt is how long a drain keeps at it before it says how far it is.
	keepAt = 5 * time.Second
	linger = 5 * time.Second
)

// Turns say which node may next evict a pod of an owner. One watch serves all nodes.
type Turns struct {
	client client.WithWatch

	mu  sync.Mutex
	all map[types.UID]*turn
	// nodes are those that are emptied at present, with what wakes them.
	nodes map[string]chan struct{}
	view  *view
}

type turn struct {
	owner     metav1.OwnerReference
	namespace string
	labels    map[string]string // of a pod of its

	// news says that something was heard of the owner since it was asked.
	news atomic.Bool

	mu sync.Mutex
	// again is when it is asked although nothing was heard. Until then the answer is waits.
	again time.Time
	waits error
	// asked is when the API server was asked last, and demand what it said.
	asked  time.Time
	demand demand
	view   *view
	sent   map[types.UID]bool
}

// NewTurns returns turns that no owner has used yet.
func NewTurns(c client.WithWatch) *Turns {
	return &Turns{client: c, all: map[types.UID]*turn{}, nodes: map[string]chan struct{}{}}
}

// join watches for a node. The channel has something when there is news for it.
func (t *Turns) join(ctx context.Context, node string) (v *view, news <-chan struct{}, err error) {
	wake := make(chan struct{}, 1)
	t.mu.Lock()
	if t.view == nil {
		t.view = newView(t.heard, t.released)
		t.view.start(ctx, t.client)
	}
	v = t.view
	t.nodes[node] = wake
	t.mu.Unlock()
	return v, wake, v.complete(ctx)
}

func (t *Turns) leave(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.nodes, node)
	if len(t.nodes) > 0 {
		return
	}
	time.AfterFunc(linger, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if len(t.nodes) == 0 && t.view != nil {
			t.view.stop()
			t.view = nil
		}
	})
}

func (t *Turns) of(p *corev1.Pod, owner *metav1.OwnerReference) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[owner.UID] == nil {
		t.all[owner.UID] = &turn{owner: *owner, namespace: p.Namespace, labels: p.Labels, sent: map[types.UID]bool{}}
	}
	return t.all[owner.UID]
}

// take asks for a pod of an owner, unless another node is at it or nothing has changed since.
func (t *Turns) take(p *corev1.Pod, owner *metav1.OwnerReference, now func() time.Time, ask func(*turn) error) error {
	turn := t.of(p, owner)
	if !turn.mu.TryLock() {
		return engine.NotYet("%s %s is asked for another pod", owner.Kind, owner.Name)
	}
	defer t.release(turn)
	if !turn.news.Swap(false) && now().Before(turn.again) {
		return turn.waits
	}
	t.mu.Lock()
	turn.view = t.view
	t.mu.Unlock()
	err := ask(turn)
	turn.again, turn.waits = now().Add(quiet), err
	if err == nil {
		turn.sent[p.UID] = true
		turn.waits = engine.NotYet("%s %s has just lost a pod", owner.Kind, owner.Name)
	}
	return err
}

// release has others take the turn. They were woken in vain by news from meanwhile.
func (t *Turns) release(turn *turn) {
	turn.mu.Unlock()
	if turn.news.Load() {
		t.tell(turn)
	}
}

func (t *Turns) later(turn *turn) { time.AfterFunc(pause, func() { t.tell(turn) }) }

func (t *Turns) heard(p *corev1.Pod) {
	t.mu.Lock()
	var its *turn
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		its = t.all[ref.UID]
	}
	t.wake(p.Spec.NodeName)
	t.mu.Unlock()
	if its != nil {
		t.tell(its)
	}
}

func (t *Turns) released(b *budget) {
	t.mu.Lock()
	var covered []*turn
	for _, turn := range t.all {
		if b.covers(turn.namespace, turn.labels) {
			covered = append(covered, turn)
		}
	}
	t.mu.Unlock()
	for _, turn := range covered {
		t.tell(turn)
	}
}

func (t *Turns) tell(turn *turn) {
	turn.news.Store(true)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.view == nil {
		return
	}
	for _, p := range t.view.ownedBy(turn.owner.UID) {
		t.wake(p.Spec.NodeName)
	}
}

// wake is called with the lock held.
func (t *Turns) wake(node string) {
	select {
	case t.nodes[node] <- struct{}{}:
	default: // it is not emptied, or has been woken
	}
}
