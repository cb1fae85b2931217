package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const (
	// eventTimeout is how long one write may take.
	eventTimeout = 10 * time.Second

	// maxMessage is the most that the API server takes (NoteLengthLimit in
	// pkg/apis/core/validation/events.go of k8s.io/kubernetes).
	maxMessage = 1024
)

// Events writes Kubernetes Events about a Migration, for `kubectl describe` and whatever collects
// Events: of phases that begin and end, of failures, and of how runs end. They are a courtesy: what
// goes wrong with them never matters to a run.
//
// They are written to the namespace default, as for every object that has none (ValidateEventCreate
// in pkg/apis/core/validation/events.go of k8s.io/kubernetes).
type Events struct {
	client    client.Client
	migration string
	warn      func(error)
	news      news
	box       *outbox

	// The fields below belong to the goroutine that delivers.
	about   *corev1.ObjectReference
	waiting []*corev1.Event
	denied  bool
	warned  bool
	number  int
	lost    atomic.Bool
}

// NewEvents starts Events about a Migration, which need not exist yet. warn is called at most once;
// Close must be called in the end.
func NewEvents(c client.Client, migration string, warn func(error)) *Events {
	ev := &Events{client: c, migration: migration, warn: warn}
	ev.box = newOutbox(ev.deliver, ev.flush)
	return ev
}

// Event is the sink. It does not wait.
func (ev *Events) Event(e engine.Event) {
	if ev.news.is(e) && ev.box.put(e) != nil {
		ev.lost.Store(true)
	}
}

const kindLost engine.EventKind = "RequestsLost"

// Lost tells of requests that were lost. It does not wait.
func (ev *Events) Lost(text string) {
	if ev.box.put(engine.Event{Time: time.Now().UTC(), Kind: kindLost, Message: text}) != nil {
		ev.lost.Store(true)
	}
}

// Close waits until all is written or given up, until ctx ends at the longest.
func (ev *Events) Close(ctx context.Context) { ev.box.close(ctx) }

// deliver keeps Events in order. They wait for the Migration, without whose UID they are not found.
func (ev *Events) deliver(ctx context.Context, e engine.Event) {
	if ev.denied {
		return
	}
	if len(ev.waiting) < capacity {
		ev.waiting = append(ev.waiting, ev.event(e))
	} else {
		ev.lost.Store(true)
	}
	if err := ev.write(ctx); err != nil && !engine.Retryable(err) {
		ev.complain(err)
		ev.waiting, ev.denied = nil, true
	}
}

func (ev *Events) flush(ctx context.Context) {
	err := ev.write(ctx)
	if err == nil && ev.lost.Load() {
		err = errFull
	}
	if err != nil {
		ev.complain(err)
	}
}

func (ev *Events) complain(err error) {
	if !ev.warned && ev.warn != nil {
		ev.warn(fmt.Errorf("writing Kubernetes Events of migration %s: %w", ev.migration, err))
	}
	ev.warned = true
}

// ErrNoMigration is why nothing was written when a run ended before it recorded its Migration.
var ErrNoMigration = errors.New("the Migration is not there")

func (ev *Events) write(ctx context.Context) error {
	if len(ev.waiting) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if err := ev.find(ctx); err != nil {
		return err
	}
	for len(ev.waiting) > 0 {
		e := ev.waiting[0]
		e.InvolvedObject = *ev.about
		// An existing Event is that of an attempt whose answer was lost.
		if err := ev.client.Create(ctx, e, client.FieldOwner(v1alpha1.FieldManager)); client.IgnoreAlreadyExists(err) != nil {
			return err
		}
		ev.waiting = ev.waiting[1:]
	}
	return nil
}

// find learns the UID of the Migration, which the first run makes only some way in.
func (ev *Events) find(ctx context.Context) error {
	if ev.about != nil {
		return nil
	}
	m := &v1alpha1.Migration{}
	err := ev.client.Get(ctx, client.ObjectKey{Name: ev.migration}, m)
	if apierrors.IsNotFound(err) {
		return engine.NotYet("%w", ErrNoMigration)
	}
	if err != nil {
		return err
	}
	ev.about = &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration", Name: m.Name, UID: m.UID,
	}
	return nil
}

func (ev *Events) event(e engine.Event) *corev1.Event {
	ev.number++
	kind := corev1.EventTypeNormal
	switch e.Kind {
	case engine.StepFailed, engine.RunFailed, engine.RunInterrupted, engine.StepDone, kindLost:
		kind = corev1.EventTypeWarning
	}
	at := metav1.NewTime(e.Time)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault,
			Name:      fmt.Sprintf("%s.%x.%d", ev.migration, e.Time.UnixNano(), ev.number),
		},
		Type: kind, Reason: reason(e), Message: cut(sentence(e)),
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: corev1.EventSource{Component: "replumb"},
	}
}

// reason is a word for programs, such as MoveStarted of the phase move.
func reason(e engine.Event) string {
	switch e.Kind {
	case engine.PhaseStarted:
		return camel(e.Phase) + "Started"
	case engine.PhaseDone:
		return camel(e.Phase) + "Done"
	case engine.StepFailed:
		return camel(e.Phase) + "Failed"
	case engine.StepWaiting:
		return camel(e.Phase) + "Waiting"
	case engine.StepDone:
		return camel(e.Phase) + "Trouble"
	}
	return string(e.Kind)
}

// camel is PointOfNoReturn for point-of-no-return.
func camel(s string) string {
	var b strings.Builder
	for _, word := range strings.FieldsFunc(s, func(r rune) bool { return r == '-' || r == '_' || r == ' ' || r == '/' }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

func cut(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	s = s[:maxMessage-3]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}
