package journal

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/safety/lease"
)

// capacity bounds records that wait for the Migration or an API server.
const capacity = 20_000

// Writer writes the journal of one run. Records wait until Flush; nothing else blocks.
type Writer struct {
	store *store
	now   func() time.Time
	room  int

	mu      sync.Mutex
	id      string
	number  int
	waiting []record
	lost    int
	// written are the waits, retries and stragglers that are written already.
	written map[string]bool

	// flushing is held while the API server is written to.
	flushing sync.Mutex
}

// NewWriter is the writer of one run of a Migration, which need not be in the cluster yet.
func NewWriter(c client.Client, m *v1alpha1.Migration, now func() time.Time) *Writer {
	if now == nil {
		now = time.Now
	}
	id := string(uuid.NewUUID())
	return &Writer{store: newStore(c, m.Name, id), now: now, room: capacity, id: id, written: map[string]bool{}}
}

// Describe identifies the run's process and cluster. Unknown fields stay empty.
func Describe(ctx context.Context, c *cluster.Cluster, migration, command, version string, overrides ...string) Run {
	self := lease.Self(migration, command)
	r := Run{User: self.User, Host: self.Host, Command: command, Version: version, Overrides: overrides}
	if r.Host == "" {
		r.Host, _ = os.Hostname()
	}
	r.Cluster = c.Known()
	if of, err := c.Identity(ctx); err == nil {
		r.Cluster = of
	}
	if v, err := c.ServerVersion(ctx); err == nil {
		r.APIServer = v.GitVersion
	}
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, nodes); err == nil && len(nodes.Items) > 0 {
		r.Kubelets = map[string]int{}
		for i := range nodes.Items {
			r.Kubelets[nodes.Items[i].Status.NodeInfo.KubeletVersion]++
		}
	}
	return r
}

// Begin marks the run. ID is set, and so is Start if it is not.
func (w *Writer) Begin(r Run) {
	r.ID = w.id
	if r.Start.IsZero() {
		r.Start = w.now().UTC()
	}
	w.put(record{Begin: &r})
}

// Event drops beginnings, unchanged steps, and repeated waits and retries.
func (w *Writer) Event(e engine.Event) {
	switch e.Kind {
	case engine.StepStarted, engine.StepUnchanged:
		return
	case engine.StepWaiting, engine.StepRetried:
		if e.Guide == "" && !w.first(string(e.Kind)+" "+e.Step) {
			return
		}
	}
	w.put(record{Event: &e})
}

func (w *Writer) Sample(s Sample)      { w.put(record{Sample: &s}) }
func (w *Writer) Loss(l v1alpha1.Loss) { w.put(record{Loss: &l}) }

// Moved adds a Service that has arrived at another address, forward or back.
func (w *Writer) Moved(service, from, to, strategy string, at time.Time, took time.Duration) {
	w.put(record{Move: &Move{Service: service, From: from, To: to, Strategy: strategy, At: at.UTC(), Seconds: took.Seconds()}})
}

// Findings adds those of a look at the cluster about which there is something to do.
func (w *Writer) Findings(all findings.Findings) {
	for i := range all {
		f := all[i]
		if f.Open() && w.first("finding "+f.Code+" "+f.Object+" "+f.Message) {
			w.put(record{Finding: &f})
		}
	}
}

func (w *Writer) Clients(node string, clients []v1alpha1.OldAddressClient) {
	for _, c := range clients {
		if w.first(fmt.Sprintf("client %s %s %s %s", node, c.Address, c.Protocol, c.Source)) {
			w.put(record{Straggler: &Straggler{Node: node, OldAddressClient: c}})
		}
	}
}

func (w *Writer) first(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.written[what] {
		return false
	}
	w.written[what] = true
	return true
}

// put queues a record; without room the oldest samples and details go first.
func (w *Writer) put(r record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) >= w.room {
		w.lost++
		i := slices.IndexFunc(w.waiting, func(r record) bool { return r.minor() })
		if i < 0 || r.minor() {
			return
		}
		w.waiting = slices.Delete(w.waiting, i, i+1)
	}
	w.number++
	r.Run, r.Number = w.id, w.number
	w.waiting = append(w.waiting, r)
}

// IncompleteError says that a journal is not whole.
type IncompleteError struct {
	Migration string
	Records   int
	Err       error
}

func (e *IncompleteError) Error() string {
	text := fmt.Sprintf("the journal of migration %s lacks %d records", e.Migration, e.Records)
	if e.Err != nil {
		return text + ": " + e.Err.Error()
	}
	return text + ": too many waited to be written"
}

func (e *IncompleteError) Unwrap() error { return e.Err }

// Flush writes what waits, and returns a *LostError for the rest. Without a Migration everything
// waits.
func (w *Writer) Flush(ctx context.Context) error {
	w.flushing.Lock()
	defer w.flushing.Unlock()
	w.mu.Lock()
	batch := slices.Clone(w.waiting)
	w.mu.Unlock()
	last, err := w.write(ctx, batch)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = slices.DeleteFunc(w.waiting, func(r record) bool { return r.Number <= last })
	switch {
	case err != nil:
		return &IncompleteError{Migration: w.store.migration, Records: w.lost + len(w.waiting), Err: err}
	case w.lost > 0:
		return &IncompleteError{Migration: w.store.migration, Records: w.lost}
	}
	return nil
}

func (w *Writer) write(ctx context.Context, batch []record) (last int, err error) {
	if len(batch) == 0 {
		return 0, nil
	}
	there, err := w.store.ready(ctx)
	if err != nil || !there {
		return 0, err
	}
	last = w.store.stored // by a write whose answer was lost
	var lines [][]byte
	var numbers []int
	for i := range batch {
		if batch[i].Number <= last {
			continue
		}
		line, err := json.Marshal(&batch[i])
		if err != nil {
			return last, fmt.Errorf("record %d: %w", batch[i].Number, err)
		}
		lines, numbers = append(lines, append(line, '\n')), append(numbers, batch[i].Number)
	}
	n, err := w.store.put(ctx, lines)
	if n > 0 {
		last = numbers[n-1]
	}
	w.store.stored = last
	return last, err
}
