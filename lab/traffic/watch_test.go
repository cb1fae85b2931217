package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

func testSource(node string, v Via) Source {
	return Source{Namespace: "shop", Node: node, Service: "cart", Via: v}
}

// givenLogs gives one reader after the other; the pod runs until the last has been given.
type givenLogs struct{ readers []io.Reader }

func (g *givenLogs) open(context.Context, podName) (io.ReadCloser, error) {
	next := g.readers[0]
	g.readers = g.readers[1:]
	return io.NopCloser(next), nil
}

func (g *givenLogs) running(context.Context, podName) (bool, error) { return len(g.readers) > 0, nil }

// TestBrokenOffLog reads a log again that broke off in the middle of a line.
func TestBrokenOffLog(t *testing.T) {
	from := testSource("a", ByName)
	log := func(seqs ...int) string {
		var text strings.Builder
		for _, seq := range seqs {
			fmt.Fprintf(&text, `{"t":%q,"n":%d,"s":%d,"q":5,"ok":5,"l":0}`+"\n", from.Target(), seq, 10+seq)
		}
		return text.String()
	}
	for again, want := range map[string]string{
		log(0, 1, 2, 3): "the log has ended", // after all four windows have been taken over
		log(0, 1, 3):    "window 3 came where 2 was due",
		log(2, 3, 3):    "window 3 came where 4 was due",
	} {
		first := log(0, 1, 2)
		c := newWatch(t.Context(), &givenLogs{readers: []io.Reader{
			strings.NewReader(first[:len(first)-5]), strings.NewReader(again),
		}})
		pod := podName{"shop", "client-a"}
		c.expect(pod, map[string]Source{from.Target(): from})
		c.follow(pod)
		err := c.Await(t.Context(), 20*time.Second, "traffic", All, func(probe.Series) bool { return false })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want it to contain %q", err, want)
		}
		if strings.HasPrefix(want, "the log") && len(c.Snapshot()[from]) != 4 {
			t.Errorf("%d windows were taken over, want 4", len(c.Snapshot()[from]))
		}
		c.Stop()
	}
}

func TestCollectorNeverTakesSilenceForSuccess(t *testing.T) {
	from := testSource("a", ByName)
	window := func(seq, start int) string {
		return fmt.Sprintf(`{"t":%q,"n":%d,"s":%d,"q":5,"ok":5,"l":0}`, from.Target(), seq, start)
	}
	tests := []struct {
		name string
		log  string
		want string
		is   error
	}{
		{"log ends", window(0, 10) + "\n", "the log has ended", probe.ErrIncomplete},
		{"window missing", window(0, 10) + "\n" + window(2, 12) + "\n", "window 2 came where 1 was due", probe.ErrIncomplete},
		{"beginning missing", window(3, 10) + "\n", "window 3 came where 0 was due", probe.ErrIncomplete},
		{"half a line", `{"t":"cart by`, "it says", nil},
		{"error of the client", "error: no configuration\n", "error: no configuration", nil},
		{"another client's target", `{"t":"x"}` + "\n", "not told to probe", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newWatch(t.Context(), &givenLogs{readers: []io.Reader{strings.NewReader(tt.log)}})
			defer c.Stop()
			pod := podName{"shop", "client-a"}
			c.expect(pod, map[string]Source{from.Target(): from})
			c.follow(pod)
			err := c.Await(t.Context(), 20*time.Second, "traffic", All, func(probe.Series) bool { return false })
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "shop/client-a") {
				t.Errorf("error = %v, want it to contain %q", err, tt.want)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error = %v, want %v", err, tt.is)
			}
		})
	}
}

func TestAwait(t *testing.T) {
	reader, writer := io.Pipe()
	defer func() { _ = writer.Close() }()
	c := newWatch(t.Context(), &givenLogs{readers: []io.Reader{reader}})
	defer c.Stop()
	defer func() { _ = reader.Close() }()
	name, old := testSource("a", ByName), testSource("a", ByOldAddress)
	pod := podName{"shop", "client-a"}
	c.expect(pod, map[string]Source{name.Target(): name, old.Target(): old})
	c.follow(pod)
	go func() {
		encoder := json.NewEncoder(writer)
		for i := range 3 {
			_ = encoder.Encode(probe.Interval{Target: name.Target(), Seq: uint64(i), Start: int64(10 + i), Sent: 1, OK: 1})
		}
	}()
	if err := c.Await(
		t.Context(),
		20*time.Second,
		"traffic",
		func(s Source) bool { return s.Via != ByOldAddress },
		Until(time.Unix(13, 0)),
	); err != nil {
		t.Fatal(err)
	}
	if got := len(c.Snapshot()[name]); got != 3 {
		t.Errorf("%d windows, want 3", got)
	}
	err := c.Await(t.Context(), time.Millisecond, "traffic", All, Until(time.Unix(13, 0)))
	want := "wait for traffic: not yet seen shop/cart by old address from node a, which reported nothing"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error = %v, want %s", err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Await(ctx, time.Hour, "traffic", All, Steady); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
}

func TestSteady(t *testing.T) {
	tests := []struct {
		s    probe.Series
		want bool
	}{
		{nil, false},
		{probe.Series{{Sent: 5, OK: 5}}, true},
		{probe.Series{{Sent: 5, OK: 5}, {Sent: 5, OK: 4, Failed: 1}}, false},
		{probe.Series{{Sent: 5, OK: 4, Failed: 1}, {Sent: 5, OK: 5}}, true},
		{probe.Series{{}}, false},
	}
	for _, tt := range tests {
		if got := Steady(tt.s); got != tt.want {
			t.Errorf("Steady(%+v) = %v", tt.s, got)
		}
	}
}

// TestRovingClientsMayEnd ends a roving client, whose silence is none if it has reported up to its end on all targets.
func TestRovingClientsMayEnd(t *testing.T) {
	byName, byLookUp := testSource("a", ByName), testSource("a", ByLookUp)
	window := func(from Source, seq int, until string) string {
		return fmt.Sprintf(`{"t":%q,"n":%d,"s":%d,"q":5,"ok":5,"l":0%s}`+"\n", from.Target(), seq, 10+seq, until)
	}
	const end = `,"u":12500000`
	whole := window(byName, 0, "") + window(byLookUp, 0, "") + window(byName, 1, end) + window(byLookUp, 1, end)
	pod := podName{"shop", "client-a"}
	watched := func(log string) *Watch {
		w := newWatch(t.Context(), &givenLogs{readers: []io.Reader{strings.NewReader(log)}})
		w.roving[pod] = true
		w.expect(pod, map[string]Source{byName.Target(): byName, byLookUp.Target(): byLookUp})
		return w
	}

	w := watched(whole)
	w.follow(pod)
	never := func(probe.Series) bool { return false }
	if err := w.Await(t.Context(), 20*time.Second, "the end", All, never); err != nil {
		t.Errorf("a client that reported up to its end: %v", err)
	}
	if got := len(w.Snapshot()[byName]); got != 2 {
		t.Errorf("%d windows of it are kept, want 2", got)
	}
	w.Stop()

	w = watched("")
	for _, line := range strings.SplitAfter(strings.TrimSuffix(whole, window(byLookUp, 1, end)), "\n") {
		if line == "" {
			continue
		}
		if err := w.add(pod, []byte(line), nil); err != nil {
			t.Fatal(err)
		}
	}
	if w.leave(pod) {
		t.Error("a client that did not report up to its end on one target is taken for one that did")
	}
}
