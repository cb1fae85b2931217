package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
)

const defaultTimeout = 10 * time.Second

// Notifier posts events to the URLs of a Migration, to each in order.
type Notifier struct {
	targets []*target
}

type target struct {
	spec v1alpha1.Notifier
	of   engine.Identity
	stop func(error)
	news news
	box  *outbox

	mu     sync.Mutex
	failed int
	first  error
}

// FailedError says that notifications were not delivered.
type FailedError struct {
	// Target is scheme and host of the URL, or the name of the environment variable that holds it.
	Target string
	// Events is how many events were not delivered. Err is why the first was not.
	Events int
	Err    error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("%d notifications were not delivered to %s; the first: %v", e.Events, e.Target, e.Err)
}

// Unwrap gives the cause.
func (e *FailedError) Unwrap() error { return e.Err }

// New starts a Notifier. stop is called at most once for each URL whose policy is Stop, maybe from
// within the sink, so it must not wait for the run. Close must be called in the end.
func New(specs []v1alpha1.Notifier, stop func(error)) *Notifier {
	n := &Notifier{}
	for _, spec := range specs {
		t := &target{spec: spec, stop: stop}
		t.box = newOutbox(t.post, func(context.Context) {})
		n.targets = append(n.targets, t)
	}
	return n
}

// About has every notification say which cluster it is about. It is called before the first event.
func (n *Notifier) About(of engine.Identity) {
	for _, t := range n.targets {
		t.of = of
	}
}

type notification struct {
	engine.Event
	Cluster engine.Identity `json:"cluster"`
}

// Event is the sink. It does not wait.
func (n *Notifier) Event(e engine.Event) {
	for _, t := range n.targets {
		if !t.news.is(e) {
			continue
		}
		if err := t.box.put(e); err != nil {
			t.fail(err)
		}
	}
}

// Close waits for deliveries, until ctx ends. It returns a *FailedError for each URL, joined, that
// did not get everything.
func (n *Notifier) Close(ctx context.Context) error {
	var all []error
	for _, t := range n.targets {
		t.box.close(ctx)
		if err := t.err(); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

func (t *target) post(ctx context.Context, e engine.Event) {
	action := v1alpha1.Action{HTTP: &t.spec.HTTPAction, Timeout: t.spec.Timeout}
	if action.Timeout == nil {
		action.Timeout = &metav1.Duration{Duration: defaultTimeout}
	}
	var body any = notification{e, t.of}
	if t.spec.Format == v1alpha1.NotifySlack {
		body = slack(e, t.of)
	}
	if err := callout.Call(ctx, action, body, nil); err != nil {
		t.fail(err)
	}
}

// slack escapes what Slack would take for markup (docs.slack.dev, "Formatting message text").
func slack(e engine.Event, of engine.Identity) map[string]string {
	text := fmt.Sprintf("replumb %s: %s", e.Plan, sentence(e))
	if of.Server != "" {
		text = fmt.Sprintf("replumb %s on %s: %s", e.Plan, of, sentence(e))
	}
	return map[string]string{"text": strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)}
}

func (t *target) fail(err error) {
	t.mu.Lock()
	t.failed++
	isFirst := t.first == nil
	if isFirst {
		t.first = err
	}
	t.mu.Unlock()
	if isFirst && t.spec.OnFailure == v1alpha1.FailureStop && t.stop != nil {
		t.stop(t.err())
	}
}

func (t *target) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first == nil {
		return nil
	}
	return &FailedError{Target: callout.Name(v1alpha1.Action{HTTP: &t.spec.HTTPAction}), Events: t.failed, Err: t.first}
}
