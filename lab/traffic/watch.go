package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/internal/verify/probe"
)

type podName struct{ namespace, name string }

func (p podName) String() string { return p.namespace + "/" + p.name }

// logs are those of pods.
type logs interface {
	// open follows the log of a pod from its beginning.
	open(ctx context.Context, pod podName) (io.ReadCloser, error)
	// running says whether the pod still writes to it.
	running(ctx context.Context, pod podName) (bool, error)
}

// podLogs are read through API server and kubelet.
type podLogs struct{ client kubernetes.Interface }

func (l podLogs) open(ctx context.Context, pod podName) (io.ReadCloser, error) {
	return l.client.CoreV1().Pods(pod.namespace).GetLogs(pod.name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
}

func (l podLogs) running(ctx context.Context, pod podName) (bool, error) {
	p, err := l.client.CoreV1().Pods(pod.namespace).Get(ctx, pod.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil, err
}

// Watch reads what clients report. It never fills in what is missing: a client that ends, a window that does not
// come and a line that is no window are all errors. A restart of what logs are read through is none: the log is then
// read again, and must go on where it was left.
type Watch struct {
	ctx     context.Context // the life of the followers, which begin one by one
	cancel  context.CancelFunc
	logs    logs // of pods
	load    Load
	running sync.WaitGroup

	mu      sync.Mutex
	outside map[podName]logs // of clients that are no pods
	sources map[podName]map[string]Source
	series  map[Source]probe.Series
	// roving are clients that may end, and ended the sources of those that have.
	roving  map[podName]bool
	ended   map[Source]bool
	err     error
	changed chan struct{}
}

func newWatch(ctx context.Context, from logs) *Watch {
	ctx, cancel := context.WithCancel(ctx)
	return &Watch{
		ctx: ctx, cancel: cancel, logs: from, outside: map[podName]logs{},
		sources: map[podName]map[string]Source{}, series: map[Source]probe.Series{},
		roving: map[podName]bool{}, ended: map[Source]bool{}, changed: make(chan struct{}),
	}
}

// expect says which targets a pod will report on, by their names.
func (w *Watch) expect(pod podName, sources map[string]Source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sources[pod] = sources
	for _, s := range sources {
		w.series[s] = nil
	}
}

func (w *Watch) follow(pod podName) {
	w.running.Go(func() {
		err := w.read(pod)
		if err == nil || w.ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err == nil {
			w.err = fmt.Errorf("read log of client %s: %w", pod, err)
		}
		w.signal()
	})
}

// A log that ended is opened again at this pace, for as long, while its client is running or cannot be asked for. An API server that has just
// been started may refuse what it has no roles for yet, and a kubelet remembers for 30 s that it did (authorization.webhook.cacheUnauthorizedTTL).
const (
	reopenEvery  = 200 * time.Millisecond
	reopenWithin = 75 * time.Second
)

// brokenOffError is the end of a log, which may be that of what it was read through.
type brokenOffError struct{ cause error }

func (e *brokenOffError) Error() string { return e.cause.Error() }
func (e *brokenOffError) Unwrap() error { return e.cause }

// read returns when the log has ended for good. That is an error unless the client is a roving one and has said all it had
// to say: others run until the watch ends.
func (w *Watch) read(pod podName) error {
	tick := time.NewTicker(reopenEvery)
	defer tick.Stop()
	heard := time.Now()
	for {
		before := w.known(pod)
		err := w.readOnce(pod, before)
		if !errors.As(err, new(*brokenOffError)) {
			return err
		}
		if !maps.Equal(before, w.known(pod)) {
			heard = time.Now()
		}
		if w.leave(pod) {
			return nil
		}
		running, askErr := w.logsOf(pod).running(w.ctx, pod)
		if (askErr == nil && !running && !w.roves(pod)) || time.Since(heard) > reopenWithin {
			return errors.Join(err, askErr)
		}
		select {
		case <-w.ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (w *Watch) logsOf(client podName) logs {
	w.mu.Lock()
	defer w.mu.Unlock()
	if outside, ok := w.outside[client]; ok {
		return outside
	}
	return w.logs
}

func (w *Watch) roves(pod podName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.roving[pod]
}

// leave reports whether a roving client has ended, and reported on all targets up to its end.
func (w *Watch) leave(pod podName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.roving[pod] {
		return false
	}
	for _, from := range w.sources[pod] {
		if s := w.series[from]; len(s) == 0 || s[len(s)-1].Until == 0 {
			return false
		}
	}
	for _, from := range w.sources[pod] {
		w.ended[from] = true
	}
	w.signal()
	return true
}

// known is how many windows there are of each target that a pod reports on.
func (w *Watch) known(pod podName) map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := map[string]uint64{}
	for target, from := range w.sources[pod] {
		known[target] = uint64(len(w.series[from]))
	}
	return known
}

// readOnce reads the log from its beginning, passing over what is known.
func (w *Watch) readOnce(pod podName, known map[string]uint64) error {
	log, err := w.logsOf(pod).open(w.ctx, pod)
	if err != nil {
		return &brokenOffError{err}
	}
	defer func() { _ = log.Close() }()
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		switch {
		case err == nil:
			if err := w.add(pod, line, known); err != nil {
				return err
			}
		case len(line) > 0:
			return &brokenOffError{fmt.Errorf("%w: it says %q and no more", probe.ErrIncomplete, line)}
		case errors.Is(err, io.EOF):
			return &brokenOffError{fmt.Errorf("%w: the log has ended", probe.ErrIncomplete)}
		default:
			return &brokenOffError{fmt.Errorf("%w: %w", probe.ErrIncomplete, err)}
		}
	}
}

func (w *Watch) add(pod podName, line []byte, known map[string]uint64) error {
	var window probe.Interval
	if err := json.Unmarshal(line, &window); err != nil {
		return fmt.Errorf("it says %q", bytes.TrimSpace(line))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	from, ok := w.sources[pod][window.Target]
	if !ok {
		return fmt.Errorf("it reports on %q, which it was not told to probe", window.Target)
	}
	if window.Seq < known[window.Target] {
		return nil
	}
	extended, err := w.series[from].Append(window)
	if err != nil {
		return err
	}
	w.series[from] = extended
	w.signal()
	return nil
}

// signal wakes everyone who awaits. The lock is held.
func (w *Watch) signal() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// Await returns when done holds for the series of each chosen source.
func (w *Watch) Await(
	ctx context.Context, timeout time.Duration, what string, chosen func(Source) bool, done func(probe.Series) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		missing, changed, err := w.missing(chosen, done)
		if err != nil || len(missing) == 0 {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: not yet seen %s: %w", what, w.explain(missing), ctx.Err())
		}
	}
}

func (w *Watch) missing(chosen func(Source) bool, done func(probe.Series) bool) ([]Source, <-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var missing []Source
	for from, s := range w.series {
		if chosen(from) && !w.ended[from] && !done(s) {
			missing = append(missing, from)
		}
	}
	return missing, w.changed, w.err
}

// explain names one of the sources with the last thing heard of it.
func (w *Watch) explain(missing []Source) string {
	from := slices.MinFunc(missing, func(a, b Source) int { return strings.Compare(a.String(), b.String()) })
	text := from.String()
	if len(missing) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(missing)-1)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.series[from]
	if len(s) == 0 {
		return text + ", which reported nothing"
	}
	last := s[len(s)-1]
	text += fmt.Sprintf(", last heard of at %s", last.EndTime().Format(time.TimeOnly))
	if last.Failed > 0 {
		text += fmt.Sprintf(" with %d of %d failed: %s", last.Failed, last.Sent, last.Example)
	}
	return text
}

// Snapshot is everything reported so far.
func (w *Watch) Snapshot() map[Source]probe.Series {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Series only ever grow at their end, so sharing what is there is safe.
	return maps.Clone(w.series)
}

// Stop ends following. It does not end the clients.
func (w *Watch) Stop() {
	w.cancel()
	w.running.Wait()
}

// Steady holds when the last second went without failures.
func Steady(s probe.Series) bool {
	if len(s) == 0 {
		return false
	}
	last := s[len(s)-1]
	return last.OK > 0 && last.OK == last.Sent
}

// Denied holds when nothing came back in the last second: no answer, and no refusal either.
func Denied(s probe.Series) bool {
	if len(s) == 0 {
		return false
	}
	last := s[len(s)-1]
	return last.Sent > 0 && last.Errors[probe.ConnectTimeout] == last.Sent
}

// Until holds when everything scheduled before t has been reported.
func Until(t time.Time) func(probe.Series) bool {
	return func(s probe.Series) bool { return !s.End().Before(t) }
}
