//go:build apiserver && long

package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// empty is a cluster without journals, and with the definition of Migration.
func empty(t *testing.T) *apitest.Server {
	t.Helper()
	s := lazy.Get(t)
	if err := s.InstallCRD(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, func(ctx context.Context) (bool, error) { return s.CRDCurrent(ctx) })
	s.Clean(t)
	s.Namespace(t, v1alpha1.JournalNamespace)
	// Garbage is not collected here.
	if err := s.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace(v1alpha1.JournalNamespace),
		client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleJournal}); err != nil {
		t.Fatal(err)
	}
	return s
}

func until(t *testing.T, f wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, f); err != nil {
		t.Fatal(err)
	}
}

func recorded(t *testing.T, s *apitest.Server) *v1alpha1.Migration {
	t.Helper()
	m := migration()
	until(t, func(ctx context.Context) (bool, error) {
		err := s.Create(ctx, m)
		return err == nil, client.IgnoreNotFound(err)
	})
	return m
}

func flush(t *testing.T, w *Writer) {
	t.Helper()
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, c client.Client) *History {
	t.Helper()
	h, err := Load(t.Context(), c, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestWaitsForTheMigration(t *testing.T) {
	s := empty(t)
	w := NewWriter(s, migration(), clock)
	w.Begin(Describe(t.Context(), s.Cluster, "shop", "replumb apply", "v1", "--accept-downtime"))
	w.Event(engine.Event{Kind: engine.RunStarted, Time: clock()})
	flush(t, w)
	if h := load(t, s); len(h.Runs)+len(h.Events) != 0 {
		t.Errorf("without a Migration there is %+v", h)
	}
	m := recorded(t, s)
	w.Event(engine.Event{Kind: engine.StepStarted, Step: "a"})
	w.Event(engine.Event{Kind: engine.StepUnchanged, Step: "a"})
	for range 3 {
		w.Event(engine.Event{Kind: engine.StepWaiting, Step: "gate/x", Time: clock(), Error: "not yet"})
	}
	w.Event(engine.Event{Kind: engine.StepWaiting, Step: "gate/x", Time: clock(), Guide: "do it"})
	w.Sample(sample(1))
	w.Loss(v1alpha1.Loss{Node: "node1", Probe: "host/x", Address: "10.96.0.9:80", LossWindow: v1alpha1.LossWindow{
		Start: metav1.NewMicroTime(clock()), End: metav1.NewMicroTime(clock()), Failed: 2, Error: "refused",
	}})
	w.Moved("shop/cart", "10.96.3.7", "172.24.3.7", "move", clock(), 1500*time.Millisecond)
	w.Findings(findings.Findings{
		{Code: "RP1", Outcome: findings.Pass},
		{Code: "RP2", Severity: findings.Warning, Outcome: findings.Fail},
		{Code: "RP2", Severity: findings.Warning, Outcome: findings.Fail},
	})
	user := v1alpha1.OldAddressClient{
		Address:  "10.96.3.7:80",
		Protocol: "TCP",
		Service:  "shop/cart",
		Pod:      "shop/till",
		Source:   "10.244.1.2",
	}
	w.Clients("node1", []v1alpha1.OldAddressClient{user, user})
	flush(t, w)
	flush(t, w)
	h := load(t, s)
	if len(h.Runs) != 1 || h.Runs[0].Command != "replumb apply" || h.Runs[0].Host == "" || h.Runs[0].APIServer == "" ||
		!h.Runs[0].Start.Equal(clock()) || h.Runs[0].Overrides[0] != "--accept-downtime" {
		t.Errorf("runs: %+v", h.Runs)
	}
	if len(h.Events) != 3 || h.Events[2].Guide != "do it" || h.Events[2].Run != h.Runs[0].ID {
		t.Errorf("events: %+v", h.Events)
	}
	if len(h.Samples) != 1 || h.Samples[0] != sample(1) {
		t.Errorf("samples: %+v", h.Samples)
	}
	if len(h.Losses) != 1 || h.Losses[0].Failed != 2 || len(h.Moves) != 1 || h.Moves[0].Seconds != 1.5 {
		t.Errorf("losses %+v, moves %+v", h.Losses, h.Moves)
	}
	if len(h.Findings) != 1 || len(h.Stragglers) != 1 || h.Stragglers[0].Pod != "shop/till" {
		t.Errorf("findings %+v, stragglers %+v", h.Findings, h.Stragglers)
	}
	cms, err := list(t.Context(), s, "shop")
	if err != nil || len(cms) != 1 || cms[0].Name != "replumb-journal-shop-0001" || cms[0].OwnerReferences[0].UID != m.UID {
		t.Errorf("configmaps: %v, %v", cms, err)
	}
}

func TestRunsAppend(t *testing.T) {
	s := empty(t)
	recorded(t, s)
	for i := range 3 {
		w := NewWriter(s, migration(), func() time.Time { return clock().Add(time.Duration(i) * time.Hour) })
		w.Begin(Run{Command: fmt.Sprint("run ", i)})
		w.Sample(sample(360 * i))
		flush(t, w)
		w.Sample(sample(360*i + 1))
		flush(t, w)
	}
	h := load(t, s)
	if len(h.Runs) != 3 || h.Runs[2].Command != "run 2" || len(h.Samples) != 6 || h.Samples[5].Start != sample(721).Start {
		t.Errorf("history: %+v", h)
	}
	if cms, _ := list(t.Context(), s, "shop"); len(cms) != 1 {
		t.Errorf("%d ConfigMaps", len(cms))
	}
}

func TestAnotherMigrationOfTheName(t *testing.T) {
	s := empty(t)
	first := recorded(t, s)
	w := NewWriter(s, first, clock)
	w.Begin(Run{Command: "before"})
	flush(t, w)
	if err := s.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	w = NewWriter(s, recorded(t, s), clock)
	w.Begin(Run{Command: "now"})
	flush(t, w)
	if h := load(t, s); len(h.Runs) != 1 || h.Runs[0].Command != "now" {
		t.Errorf("runs: %+v", h.Runs)
	}
}

func TestThinnedNeverLossesAndPhases(t *testing.T) {
	s := empty(t)
	m := recorded(t, s)
	w := NewWriter(s, m, clock)
	w.store.size, w.store.most = 3000, 3
	sent, losses := int64(0), 0
	for i := range 3000 {
		w.Sample(sample(i))
		sent += sample(i).Sent
		if i%100 == 0 {
			w.Event(engine.Event{Kind: engine.PhaseDone, Phase: fmt.Sprint("p", i), Time: time.Unix(sample(i).Start, 0)})
			w.Event(engine.Event{Kind: engine.StepDone, Step: fmt.Sprint("s", i), Time: time.Unix(sample(i).Start, 0)})
		}
		if i%250 == 0 {
			losses++
			w.Loss(v1alpha1.Loss{Node: fmt.Sprint("node", i), LossWindow: v1alpha1.LossWindow{Failed: i}})
		}
		if i%50 == 49 {
			flush(t, w)
		}
	}
	h := load(t, s)
	var got Sample
	for _, x := range h.Samples {
		got = Merge(got, x)
	}
	phases := slices.DeleteFunc(slices.Clone(h.Events), func(e Event) bool { return e.Kind != engine.PhaseDone })
	if !h.Thinned || got.Sent != sent || got.Failed != 1500 || len(h.Samples) >= 3000 || len(h.Losses) != losses || len(phases) != 30 {
		t.Errorf("thinned %v: %d samples of %+v, %d losses, %d phases", h.Thinned, len(h.Samples), got, len(h.Losses), len(phases))
	}
	if got.P50 != 900 || got.P99 != 6999 || got.Start != clock().Unix() {
		t.Errorf("all in all %+v", got)
	}
	if !slices.IsSortedFunc(h.Samples, func(a, b Sample) int { return int(a.Start - b.Start) }) {
		t.Error("samples are not in order")
	}
	cms, err := list(t.Context(), s, "shop")
	if err != nil || len(cms) > 3 {
		t.Errorf("%d ConfigMaps, %v", len(cms), err)
	}
	for i := range 2000 { // until nothing is left to be thinned: that is reported
		w.Loss(v1alpha1.Loss{Node: fmt.Sprint("node", i, time.Duration(i*i*i*7919)), LossWindow: v1alpha1.LossWindow{Failed: i}})
	}
	var lost *IncompleteError
	if err := w.Flush(t.Context()); !errors.As(err, &lost) || !errors.Is(err, errFull) || lost.Records == 0 {
		t.Errorf("full: %v", err)
	}
}

// TestWritesThatFail lets writes fail before and after they reach the API server: nothing is
// missing, and nothing is there twice.
func TestWritesThatFail(t *testing.T) {
	s := empty(t)
	m := recorded(t, s)
	count := 0
	trouble := errors.New("connection lost")
	fails := func(do func() error) error {
		count++
		switch count % 3 {
		case 1:
			return trouble
		case 2:
			return errors.Join(do(), trouble)
		}
		return do()
	}
	inner, err := client.NewWithWatch(s.Config, client.Options{Scheme: s.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	c := interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return fails(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return fails(func() error { return c.Update(ctx, o, opts...) })
		},
	})
	w := NewWriter(c, m, clock)
	for i := range 20 {
		w.Sample(sample(i))
		var lost *IncompleteError
		if err := w.Flush(t.Context()); err != nil && (!errors.As(err, &lost) || !errors.Is(err, trouble)) {
			t.Fatal(err)
		}
	}
	until(t, func(ctx context.Context) (bool, error) { return w.Flush(ctx) == nil, nil })
	h := load(t, s)
	for i := range 20 {
		if len(h.Samples) != 20 || h.Samples[i] != sample(i) {
			t.Fatalf("%d samples: %+v", len(h.Samples), h.Samples)
		}
	}
}

func TestDamageIsNamed(t *testing.T) {
	s := empty(t)
	m := recorded(t, s)
	w := NewWriter(s, m, clock)
	w.store.size = 1200
	for i := range 100 {
		w.Sample(sample(i * 7))
		flush(t, w)
	}
	cms, err := list(t.Context(), s, "shop")
	if err != nil || len(cms) < 2 {
		t.Fatalf("%d ConfigMaps, %v", len(cms), err)
	}
	cms[0].BinaryData[dataRecords][40] ^= 1
	if err := s.Update(t.Context(), &cms[0]); err != nil {
		t.Fatal(err)
	}
	h := load(t, s)
	if len(h.Damaged) != 1 || !strings.Contains(h.Damaged[0], cms[0].Name) || len(h.Samples) == 0 {
		t.Errorf("damaged %q, %d samples", h.Damaged, len(h.Samples))
	}
	w = NewWriter(s, m, clock)
	w.Begin(Run{Command: "later"})
	flush(t, w)
	if h := load(t, s); len(h.Runs) != 1 {
		t.Errorf("runs: %+v", h.Runs)
	}
}
