package probe

import (
	"fmt"
	"math"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// WindowLength starts on whole seconds, so that windows of all probers line up.
const WindowLength = time.Second

// Interval counts one target's requests of one second. It is written once all have ended, so it
// never changes. The JSON is compact for pod logs.
type Interval struct {
	Target string `json:"t"`
	// Seq counts the windows of a target from 0 without holes; a missing one means lost output.
	Seq uint64 `json:"n"`
	// Start is in seconds since the Unix epoch; the other instants are in microseconds.
	Start int64 `json:"s"`
	// Sent are OK and Failed. Late ones are OK, but slower than LateAfter or with a second DNS try.
	Sent   int `json:"q"`
	OK     int `json:"ok"`
	Failed int `json:"f,omitempty"`
	Late   int `json:"la,omitempty"`
	// NotMeasured are further requests that the prober could not send in time, had no room for, or
	// could not receive while it stood still.
	NotMeasured int `json:"nm,omitempty"`
	// Errors counts the failures by class; Example is the text of the first.
	Errors  map[Class]int `json:"e,omitempty"`
	Example string        `json:"x,omitempty"`
	// FirstFailure and LastFailure are the scheduled times of the first and last failed request.
	FirstFailure int64 `json:"ff,omitempty"`
	LastFailure  int64 `json:"lf,omitempty"`
	// Gap is the longest time between successes whose later one is in this window.
	Gap int64 `json:"g,omitempty"`
	// LastOK is the latest success so far, or the beginning of probing.
	LastOK int64 `json:"l"`
	// Until is set when probing ended before the window did.
	Until int64 `json:"u,omitempty"`
	// Reconnects counts how often a stream had to be opened again.
	Reconnects int `json:"r,omitempty"`
	// Stalls are those that ended in this window.
	Stalls []Stall `json:"st,omitempty"`
	// Behind is the prober's own delay, if worth telling: a busy or sleeping machine.
	Behind int64 `json:"y,omitempty"`
	// Latency is an HdrHistogram (V2, compressed, base64) in µs from the due time.
	Latency string `json:"h,omitempty"`
}

func (w Interval) StartTime() time.Time { return time.Unix(w.Start, 0) }

// EndTime is when the window, or probing, ends.
func (w Interval) EndTime() time.Time {
	if w.Until != 0 {
		return time.UnixMicro(w.Until)
	}
	return w.StartTime().Add(WindowLength)
}

// OpenGap is the time since the latest success when the window ends.
func (w Interval) OpenGap() time.Duration {
	return max(0, w.EndTime().Sub(time.UnixMicro(w.LastOK)))
}

func (w Interval) BehindBy() time.Duration { return time.Duration(w.Behind) * time.Microsecond }

// Two digits keep a histogram around a hundred bytes; the top takes all beyond.
const (
	latencyTop    = int64(time.Minute / time.Microsecond)
	latencyDigits = 2
)

func newHistogram() *hdr.Histogram { return hdr.New(1, latencyTop, latencyDigits) }

func recordLatency(h *hdr.Histogram, latency time.Duration) {
	micros := min(max(latency.Microseconds(), 1), latencyTop)
	// A value inside the histogram's range is always accepted.
	_ = h.RecordValue(micros)
}

func encodeLatency(h *hdr.Histogram) string {
	if h == nil || h.TotalCount() == 0 {
		return ""
	}
	return encodeHistogram(h)
}

func decodeLatency(encoded string) (*hdr.Histogram, error) {
	h, err := hdr.Decode([]byte(encoded))
	if err != nil {
		return nil, fmt.Errorf("decode latencies: %w", err)
	}
	return h, nil
}

func windowStart(t time.Time) int64 {
	return int64(math.Floor(float64(t.UnixMicro()) / 1e6))
}
