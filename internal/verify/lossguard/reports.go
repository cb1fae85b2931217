package lossguard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// relistPause is the pause before NodeReports are listed again, after a failure.
const relistPause = 500 * time.Millisecond

// reports are filled by a reflector since a run began, and wake waiters.
type reports struct {
	// arrived is called with every report that came, and what is new in it; without the lock.
	arrived func(*v1alpha1.NodeReport, news)
	now     func() time.Time

	// doubts has a value when a report came of an instance that is not known.
	doubts chan struct{}

	mu    sync.Mutex
	known instances
	// strange are the latest reports of nodes with something in them that no pod there has said.
	strange map[string]*v1alpha1.NodeReport
	tally   *Tally
	samples samples
	changed chan struct{}
}

type news struct {
	samples []Sample
	losses  []v1alpha1.Loss
	// failed and late are totals; latest and lates the latest of each.
	failed, late int64
	latest       []v1alpha1.Loss
	lates        []Late
}

var _ cache.ReflectorStore = (*reports)(nil)

func newReports(now func() time.Time, arrived func(*v1alpha1.NodeReport, news)) *reports {
	return &reports{
		now: now, arrived: arrived, tally: newTally(), changed: make(chan struct{}), doubts: make(chan struct{}, 1),
		known: instances{}, strange: map[string]*v1alpha1.NodeReport{},
	}
}

// follow watches NodeReports until ctx ends. Their definition need not exist yet.
func (r *reports) follow(ctx context.Context, c client.WithWatch, migration string) {
	selected := client.MatchingLabels{v1alpha1.LabelMigration: migration}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &v1alpha1.NodeReportList{}
			return list, c.List(ctx, list, selected, &client.ListOptions{Limit: o.Limit, Continue: o.Continue, Raw: &o})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &v1alpha1.NodeReportList{}, selected, &client.ListOptions{Raw: &o})
		},
	}
	// The default backoff grows to half a minute; a loss must stop a run at once.
	pauses := &wait.Backoff{Duration: relistPause, Factor: 1, Steps: 1}
	options := cache.ReflectorOptions{Name: "nodereports", Backoff: pauses}
	silent := klog.NewContext(ctx, klog.Logger{}) // stderr is for people, and what keeps reports away is seen as silence
	cache.NewReflectorWithOptions(source, &v1alpha1.NodeReport{}, r, options).RunWithContext(silent)
}

func (r *reports) Add(obj any) error { return r.Update(obj) }

func (r *reports) Update(obj any) error {
	report, ok := obj.(*v1alpha1.NodeReport)
	if !ok {
		return fmt.Errorf("watching NodeReports: got a %T", obj)
	}
	r.mu.Lock()
	report = r.admit(report)
	n := news{losses: r.tally.Take(report, r.now()), samples: r.samples.take(report)}
	n.failed, n.latest = r.tally.Failed, slices.Clone(r.tally.Losses)
	n.late, n.lates = r.tally.Late, slices.Clone(r.tally.Lates)
	r.signal()
	r.mu.Unlock()
	r.arrived(report, n)
	return nil
}

func (r *reports) Delete(obj any) error {
	report, ok := obj.(*v1alpha1.NodeReport)
	if !ok {
		return fmt.Errorf("watching NodeReports: got a %T", obj)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.Forget(report.Name)
	delete(r.strange, report.Name)
	r.signal()
	return nil
}

func (r *reports) Replace(all []any, _ string) error {
	there := map[string]bool{}
	for _, obj := range all {
		if report, ok := obj.(*v1alpha1.NodeReport); ok {
			there[report.Name] = true
		}
	}
	r.mu.Lock()
	r.tally.Retain(there)
	maps.DeleteFunc(r.strange, func(node string, _ *v1alpha1.NodeReport) bool { return !there[node] })
	r.mu.Unlock()
	for _, obj := range all {
		if err := r.Update(obj); err != nil {
			return err
		}
	}
	return nil
}

func (*reports) Resync() error { return nil }

func (r *reports) signal() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// rest is what no sample has covered yet.
func (r *reports) rest() []Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.samples.rest()
}

func (r *reports) read(fn func(*Tally)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r.tally)
}

// until waits up to a moment for a condition, and returns what is missing.
func (r *reports) until(ctx context.Context, moment time.Duration, missing func(*Tally) []string) []string {
	timer := time.NewTimer(moment)
	defer timer.Stop()
	for {
		r.mu.Lock()
		left, changed := missing(r.tally), r.changed
		r.mu.Unlock()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return left
		case <-ctx.Done():
			return left
		}
	}
}
