package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/internal/probe"
)

type series = probe.Series

type podName struct{ namespace, name string }

func (p podName) String() string { return p.namespace + "/" + p.name }

// openLog follows the log of a pod from its beginning.
type openLog func(ctx context.Context, pod podName) (io.ReadCloser, error)

func podLogs(client kubernetes.Interface) openLog {
	return func(ctx context.Context, pod podName) (io.ReadCloser, error) {
		return client.CoreV1().Pods(pod.namespace).GetLogs(pod.name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	}
}

// collector reads what clients report. It never fills in what is missing: a log that ends, a window that does not
// come and a line that is no window are all errors.
type collector struct {
	ctx     context.Context // the life of the followers, which begin one by one
	cancel  context.CancelFunc
	open    openLog
	running sync.WaitGroup

	mu      sync.Mutex
	sources map[podName]map[string]source
	series  map[source]series
	err     error
	changed chan struct{}
}

func newCollector(ctx context.Context, open openLog) *collector {
	ctx, cancel := context.WithCancel(ctx)
	return &collector{
		ctx: ctx, cancel: cancel, open: open,
		sources: map[podName]map[string]source{}, series: map[source]series{}, changed: make(chan struct{}),
	}
}

// expect says which targets a pod will report on, by their names.
func (c *collector) expect(pod podName, sources map[string]source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources[pod] = sources
	for _, s := range sources {
		c.series[s] = nil
	}
}

func (c *collector) follow(pod podName) {
	c.running.Go(func() {
		err := c.read(pod)
		if c.ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err == nil {
			c.err = fmt.Errorf("read log of client %s: %w", pod, err)
		}
		c.signal()
	})
}

// read returns when the log ends, which is always an error: clients run until the demo is over.
func (c *collector) read(pod podName) error {
	log, err := c.open(c.ctx, pod)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if err := c.add(pod, lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: %w", probe.ErrIncomplete, err)
	}
	return fmt.Errorf("%w: the log has ended", probe.ErrIncomplete)
}

func (c *collector) add(pod podName, line []byte) error {
	var w probe.Window
	if err := json.Unmarshal(line, &w); err != nil {
		return fmt.Errorf("it says %q", line)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	from, ok := c.sources[pod][w.Target]
	if !ok {
		return fmt.Errorf("it reports on %q, which it was not told to probe", w.Target)
	}
	extended, err := c.series[from].Append(w)
	if err != nil {
		return err
	}
	c.series[from] = extended
	c.signal()
	return nil
}

// signal wakes everyone who awaits. The lock is held.
func (c *collector) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// await returns when done holds for the series of each chosen source.
func (c *collector) await(
	ctx context.Context, timeout time.Duration, what string, chosen func(source) bool, done func(series) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		missing, changed, err := c.missing(chosen, done)
		if err != nil || len(missing) == 0 {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: not yet seen %s: %w", what, c.explain(missing), ctx.Err())
		}
	}
}

func (c *collector) missing(chosen func(source) bool, done func(series) bool) ([]source, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []source
	for from, s := range c.series {
		if chosen(from) && !done(s) {
			missing = append(missing, from)
		}
	}
	return missing, c.changed, c.err
}

// explain names one of the sources with the last thing heard of it.
func (c *collector) explain(missing []source) string {
	from := slices.MinFunc(missing, func(a, b source) int { return strings.Compare(a.String(), b.String()) })
	text := from.String()
	if len(missing) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(missing)-1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.series[from]
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

// snapshot is everything reported so far.
func (c *collector) snapshot() map[source]series {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Series only ever grow at their end, so sharing what is there is safe.
	return maps.Clone(c.series)
}

func (c *collector) stop() {
	c.cancel()
	c.running.Wait()
}

// steady holds when the last second went without failures.
func steady(s series) bool {
	if len(s) == 0 {
		return false
	}
	last := s[len(s)-1]
	return last.OK > 0 && last.OK == last.Sent
}

// until holds when everything scheduled before t has been reported.
func until(t time.Time) func(series) bool {
	return func(s series) bool { return !s.End().Before(t) }
}
