package demo

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/capacity"
	"github.com/replumb/replumb/lab/traffic"
)

// Result is what the demo found, as written to the result file.
type Result struct {
	// Machine is what was measured of it, Share the part of the rates at which clients called for that.
	Machine capacity.Machine `json:"machine"`
	Share   float64          `json:"share"`
	Replumb Side             `json:"replumb"`
	Control Side             `json:"control"`
	DNS     Side             `json:"dns"`
	Clients []Client         `json:"clients"`
	// Losses lists what should not have been lost: every stretch of failures on replumb's side.
	Losses []Loss `json:"losses"`
	// Ways parts the sides by the way clients took.
	Ways []Way `json:"ways"`
	// Seconds parts them by time.
	Seconds Seconds `json:"seconds"`
}

// Side is one way of moving, or the look-ups beside it.
type Side struct {
	Phase
	Before     Phase               `json:"before"`
	During     Phase               `json:"during"`
	After      Phase               `json:"after"`
	Reconnects int                 `json:"reconnects"`
	Errors     map[probe.Class]int `json:"errors"`
}

// Phase is a stretch of time.
type Phase struct {
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	// Late requests were answered, after more than a second. NotMeasured ones are none of the requests: clients could not send or await them.
	Late         int     `json:"late"`
	NotMeasured  int     `json:"notMeasured"`
	LongestGapMs float64 `json:"longestGapMs"`
	P50Ms        float64 `json:"p50Ms"`
	P99Ms        float64 `json:"p99Ms"`
}

// Way is how clients reached the Services of one side.
type Way struct {
	Of  string `json:"side"`
	Via string `json:"via"`
	Side
}

// Client is a client of replumb's side.
type Client struct {
	Node               string `json:"node"`
	Proxy              string `json:"proxy"`
	RequestsDuringMove int    `json:"requestsDuringMove"`
	Failed             int    `json:"failed"`
}

// Loss is a stretch of failures as seen from one node.
type Loss struct {
	Node string `json:"node"`
	probe.Loss
}

const (
	replumbSide = "replumb"
	controlSide = "control"
)

// compute adds up what was counted from the baseline on. Old addresses of the shop count up to finish, which retires
// them; everything else counts to the end.
func compute(t timeline, proxyModes map[string]string) (Result, error) {
	counted := map[traffic.Source]probe.Series{}
	for from, s := range t.atEnd {
		if from.Namespace == shopNamespace && from.Via == traffic.ByOldAddress {
			s = t.atFinish[from]
		}
		counted[from] = s
	}
	r := Result{Machine: t.load.Machine, Share: t.load.Share}
	var err error
	side := func(chosen func(traffic.Source) bool) Side {
		s, sideErr := sideOf(counted, t, chosen)
		err = errors.Join(err, sideErr)
		return s
	}
	r.Replumb = side(replumbRequests)
	r.Control = side(controlRequests)
	r.DNS = side(func(s traffic.Source) bool { return s.Via == traffic.ByLookUp })
	for _, of := range []struct {
		name, namespace string
		ways            []traffic.Via
	}{{replumbSide, shopNamespace, traffic.Ways()}, {controlSide, controlNamespace, []traffic.Via{traffic.ByName, traffic.ByOldAddress}}} {
		for _, v := range of.ways {
			r.Ways = append(r.Ways, Way{Of: of.name, Via: string(v), Side: side(func(s traffic.Source) bool {
				return s.Namespace == of.namespace && s.Via == v
			})})
		}
	}
	for _, node := range nodes(counted) {
		client := side(func(s traffic.Source) bool { return s.Node == node && replumbRequests(s) })
		r.Clients = append(r.Clients, Client{
			Node: node, Proxy: proxyModes[node], RequestsDuringMove: client.During.Requests, Failed: client.Failed,
		})
	}
	r.Losses = losses(counted, t.load.From)
	r.Seconds = secondsOf(counted, t)
	return r, err
}

// replumbRequests are the requests replumb is judged by; look-ups are counted beside them.
func replumbRequests(s traffic.Source) bool {
	return s.Namespace == shopNamespace && s.Via != traffic.ByLookUp
}

// controlRequests are those of the Service that is moved the naive way.
func controlRequests(s traffic.Source) bool { return s.Namespace == controlNamespace }

func sideOf(counted map[traffic.Source]probe.Series, t timeline, chosen func(traffic.Source) bool) (Side, error) {
	end := forever()
	var parts [4][]probe.Stats
	for from, s := range counted {
		if !chosen(from) {
			continue
		}
		for i, part := range []probe.Series{
			s.Between(t.load.From, end), s.Between(t.load.From, t.moveBegan),
			s.Between(t.moveBegan, t.moveEnded), s.Between(t.moveEnded, end),
		} {
			stats, err := part.Stats()
			if err != nil {
				return Side{}, fmt.Errorf("%s: %w", from, err)
			}
			parts[i] = append(parts[i], stats)
		}
	}
	whole := probe.Merge(parts[0]...)
	return Side{
		Phase:  phaseOf(whole),
		Before: phaseOf(probe.Merge(parts[1]...)), During: phaseOf(probe.Merge(parts[2]...)), After: phaseOf(probe.Merge(parts[3]...)),
		Reconnects: whole.Reconnects, Errors: whole.Errors,
	}, nil
}

func phaseOf(s probe.Stats) Phase {
	return Phase{
		Requests: s.Sent, Failed: s.Failed, Late: s.Late, NotMeasured: s.NotMeasured, LongestGapMs: millis(s.LongestGap),
		P50Ms: millis(s.Percentile(50)), P99Ms: millis(s.Percentile(99)),
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func nodes(counted map[traffic.Source]probe.Series) []string {
	var names []string
	for from := range counted {
		if !slices.Contains(names, from.Node) {
			names = append(names, from.Node)
		}
	}
	slices.Sort(names)
	return names
}

func losses(counted map[traffic.Source]probe.Series, since time.Time) []Loss {
	found := []Loss{}
	for from, s := range counted {
		if from.Namespace != shopNamespace {
			continue
		}
		for _, loss := range s.Between(since, forever()).Losses() {
			found = append(found, Loss{Node: from.Node, Loss: loss})
		}
	}
	slices.SortFunc(found, func(a, b Loss) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Target, b.Target))
	})
	return found
}

// verdict returns everything that stands against the claim that replumb lost nothing where the naive way loses; a
// *NotMeasuredError of the probes if the machine kept clients from measuring that.
func (r Result) verdict(minRequests int) error {
	var against []error
	add := func(format string, args ...any) { against = append(against, fmt.Errorf(format, args...)) }
	notMeasured := probe.Measured(r.Replumb.Requests+r.DNS.Requests, r.Replumb.NotMeasured+r.DNS.NotMeasured)
	if lost := r.Replumb.lost(notMeasured != nil); lost > 0 {
		add("replumb lost %d of %d requests: %s", lost, r.Replumb.Requests, probe.FormatErrors(r.Replumb.Errors))
	}
	if lost := r.DNS.lost(notMeasured != nil); lost > 0 {
		add("%d of %d look-ups failed: %s", lost, r.DNS.Requests, probe.FormatErrors(r.DNS.Errors))
	}
	if len(against) == 0 && notMeasured != nil {
		return notMeasured
	}
	if r.DNS.During.Requests == 0 {
		add("no look-ups were made during the move")
	}
	if r.Replumb.Reconnects > 0 {
		add("long-lived connections broke %d times", r.Replumb.Reconnects)
	}
	if r.Control.Before.Failed > 0 {
		add("the control lost %d requests before anything moved", r.Control.Before.Failed)
	}
	if r.Control.During.Failed+r.Control.After.Failed == 0 {
		add("the control lost nothing, so the probes prove nothing")
	}
	for _, c := range r.Clients {
		if c.RequestsDuringMove == 0 {
			add("the client on node %s sent nothing during the move", c.Node)
		}
	}
	if n := r.Replumb.During.Requests; n < minRequests {
		add("only %d requests were sent during the move, which is less than %d", n, minRequests)
	}
	return errors.Join(against...)
}

// lost is how many requests have failed; without the time-outs where clients stood still, as it is not known whose those are.
func (s Side) lost(stoodStill bool) int {
	if !stoodStill {
		return s.Failed
	}
	return s.Failed - s.Errors[probe.Timeout] - s.Errors[probe.ConnectTimeout] - s.Errors[probe.DNSTimeout]
}

// judge writes the result down and shows it, whatever it is, before saying whether it is good.
func (d *demo) judge(t timeline) error {
	r, err := compute(t, d.ProxyModes)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.Result, append(data, '\n'), 0o644); err != nil {
		return err
	}
	if _, err := fmt.Fprint(d.Out, "\n", r.Table()); err != nil {
		return err
	}
	return r.verdict(int(float64(d.MinRequests) * r.Share))
}
