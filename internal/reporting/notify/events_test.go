//go:build apiserver && long

package notify

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// lazy is shared by the tests of this package.
var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// setup gives an API server that knows Migrations and has no Event of replumb.
func setup(t *testing.T) *apitest.Server {
	t.Helper()
	s := lazy.Get(t)
	if err := s.InstallCRD(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return s.List(ctx, &v1alpha1.MigrationList{}) == nil, nil
	})
	if err != nil {
		t.Fatalf("the API server does not take up Migrations: %v", err)
	}
	s.Clean(t)
	if err := s.DeleteAllOf(t.Context(), &corev1.Event{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t *testing.T, s *apitest.Server) *v1alpha1.Migration {
	t.Helper()
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}},
	}
	if err := s.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// written are the Events of replumb, in the order in which they were created.
func written(t *testing.T, s *apitest.Server) []corev1.Event {
	t.Helper()
	list := &corev1.EventList{}
	if err := s.List(t.Context(), list, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	out := slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Source.Component != "replumb" })
	slices.SortFunc(out, func(a, b corev1.Event) int {
		x, y := strings.LastIndex(a.Name, "."), strings.LastIndex(b.Name, ".")
		if len(a.Name[x:]) != len(b.Name[y:]) {
			return len(a.Name[x:]) - len(b.Name[y:])
		}
		return strings.Compare(a.Name[x:], b.Name[y:])
	})
	return out
}

func TestEventsAreWrittenAboutTheMigration(t *testing.T) {
	s := setup(t)
	ev := NewEvents(s.Cluster, "shop", func(err error) { t.Error(err) })
	var m *v1alpha1.Migration
	p := plan(errors.New("broken"))
	p.Phases[0].Groups[0].Steps = append(
		p.Phases[0].Groups[0].Steps,
		&fake{id: "record", verify: func() error { m = create(t, s); return nil }},
	)
	if err := (&engine.Runner{Sink: ev.Event}).Run(t.Context(), p); err == nil {
		t.Fatal("the plan did not fail")
	}
	ev.Close(t.Context())
	var got []string
	for _, e := range written(t, s) {
		got = append(got, e.Type+" "+e.Reason)
		ref := corev1.ObjectReference{APIVersion: "replumb.dev/v1alpha1", Kind: "Migration", Name: "shop", UID: m.UID}
		if e.InvolvedObject != ref || e.Count != 1 || e.LastTimestamp.IsZero() || e.Message == "" {
			t.Errorf("got %+v", e)
		}
	}
	want := []string{
		"Normal RunStarted", "Normal MoveStarted", "Warning MoveTrouble", "Normal MoveDone", "Normal KubeletGateStarted",
		"Normal KubeletGateWaiting", "Normal KubeletGateDone", "Normal EndStarted", "Warning EndFailed", "Warning RunFailed",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	described := &corev1.EventList{} // as kubectl describe looks for them
	selector := client.MatchingFields{
		"involvedObject.name": "shop",
		"involvedObject.kind": "Migration",
		"involvedObject.uid":  string(m.UID),
	}
	if err := s.List(t.Context(), described, selector); err != nil || len(described.Items) != len(want) {
		t.Errorf("described: %d Events, %v", len(described.Items), err)
	}
}

func TestEventsOfALongMessageAreCut(t *testing.T) {
	s := setup(t)
	create(t, s)
	ev := NewEvents(s.Cluster, "shop", func(err error) { t.Error(err) })
	ev.Event(engine.Event{Kind: engine.RunFailed, Error: strings.Repeat("ä", 3000)})
	ev.Close(t.Context())
	all := written(t, s)
	if len(all) != 1 || len(all[0].Message) > 1024 || !utf8.ValidString(all[0].Message) || !strings.HasSuffix(all[0].Message, "ä...") {
		t.Errorf("got %+v", all)
	}
}

func TestEventsThatCannotBeWrittenAreToldOnce(t *testing.T) {
	s := setup(t)
	stranger := rest.CopyConfig(s.Config)
	stranger.Impersonate.UserName = "stranger"
	denied, err := cluster.Connect(stranger)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name   string
		client client.Client
		ctx    context.Context
		is     func(error) bool
	}{
		{"no right", denied, t.Context(), apierrors.IsForbidden},
		{"no Migration", s.Cluster, t.Context(), func(err error) bool { return errors.Is(err, ErrNoMigration) }},
		{"no time", s.Cluster, gone, func(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrNoMigration) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var warned []error
			ev := NewEvents(tt.client, "shop", func(err error) { warned = append(warned, err) })
			if err := (&engine.Runner{Sink: ev.Event}).Run(t.Context(), plan(nil)); err != nil {
				t.Error(err)
			}
			ev.Close(tt.ctx)
			if len(warned) != 1 || !tt.is(warned[0]) {
				t.Errorf("warned %v", warned)
			}
		})
	}
	if all := written(t, s); len(all) != 0 {
		t.Errorf("written: %v", all)
	}
}

func TestEventsBeyondWhatFitsAreTold(t *testing.T) {
	s := setup(t)
	var warned []error
	ev := NewEvents(s.Cluster, "shop", func(err error) { warned = append(warned, err) })
	for range 4 * capacity {
		ev.Event(engine.Event{Kind: engine.RunStarted})
	}
	ev.Close(t.Context())
	if len(warned) != 1 {
		t.Errorf("warned %v", warned)
	}
}
