package rollout

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine"
)

const (
	// pause is how long an owner is left alone after it was asked for a pod.
	pause = 300 * time.Millisecond
	// keepAt is how long a drain keeps asking before it looks at its node again.
	keepAt = 2 * time.Second
)

// Turns are whose it is to lose a pod, where several nodes are emptied at once: an owner whose pods are on all of them loses one
// after the other, and is asked how it is once for all of them.
type Turns struct {
	mu  sync.Mutex
	all map[types.UID]*turn
}

type turn struct {
	mu sync.Mutex
	// until no one needs to ask again: the answer is waits.
	until time.Time
	waits error
	// counted is when its pods were counted last, and not only its own count was read.
	counted time.Time
}

// NewTurns returns turns that no owner has used yet.
func NewTurns() *Turns { return &Turns{all: map[types.UID]*turn{}} }

func (t *Turns) of(uid types.UID) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[uid] == nil {
		t.all[uid] = &turn{}
	}
	return t.all[uid]
}

// take asks for a pod of an owner, unless someone has just done so. Now and then it has its pods counted.
func (t *Turns) take(owner *metav1.OwnerReference, now func() time.Time, ask func(count bool) error) error {
	turn := t.of(owner.UID)
	turn.mu.Lock()
	defer turn.mu.Unlock()
	if now().Before(turn.until) {
		return turn.waits
	}
	count := now().Sub(turn.counted) >= quiet
	if count {
		turn.counted = now()
	}
	err := ask(count)
	turn.until, turn.waits = now().Add(pause), err
	if err == nil {
		turn.waits = engine.NotYet("%s %s has just lost a pod", owner.Kind, owner.Name)
	}
	return err
}
