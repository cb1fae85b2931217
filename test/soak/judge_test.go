package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/test/soak/model"
)

// second is the first of those that clients report on.
const second = 1_700_000_000

func at(n int) time.Time { return time.Unix(second+int64(n), 0) }

// heard is what a source reports of a stretch of seconds: in each ten requests, and of those failed ones in some.
func heard(via traffic.Via, seconds int, failed map[int]int) map[traffic.Source]probe.Series {
	var series probe.Series
	for i := range seconds {
		w := probe.Interval{Target: "t", Seq: uint64(i), Start: second + int64(i), Sent: 10, OK: 10 - failed[i], Failed: failed[i]}
		if failed[i] > 0 {
			w.Errors = map[probe.Class]int{probe.ConnectTimeout: failed[i]}
		}
		series = append(series, w)
	}
	return map[traffic.Source]probe.Series{{Service: "x", Via: via}: series}
}

func TestCount(t *testing.T) {
	kill := []time.Time{at(50).Add(300 * time.Millisecond)}
	for name, test := range map[string]struct {
		heard map[traffic.Source]probe.Series
		kills []time.Time
		want  tally
	}{
		"nothing lost":             {heard(traffic.ByName, 100, nil), nil, tally{Sent: 1000}},
		"lost":                     {heard(traffic.ByName, 100, map[int]int{7: 2}), nil, tally{Sent: 1000, Lost: 2}},
		"before and after":         {heard(traffic.ByName, 300, map[int]int{150: 2}), nil, tally{Sent: 1000}},
		"a kill is no excuse":      {heard(traffic.ByName, 100, map[int]int{55: 2}), kill, tally{Sent: 1000, Lost: 2}},
		"nor for cluster DNS":      {heard(traffic.ByOldServer, 100, map[int]int{55: 2}), kill, tally{Sent: 1000, Lost: 2}},
		"but for API servers":      {heard(traffic.ByAPIName, 100, map[int]int{55: 2}), kill, tally{Sent: 590, BlamedSent: 410, BlamedLost: 2}},
		"and what was under way":   {heard(traffic.ByAPIKept, 100, map[int]int{40: 1}), kill, tally{Sent: 590, BlamedSent: 410, BlamedLost: 1}},
		"no longer than it takes":  {heard(traffic.ByAPIOldAddress, 100, map[int]int{81: 2}), kill, tally{Sent: 590, Lost: 2, BlamedSent: 410}},
		"nor without a kill":       {heard(traffic.ByAPIOldAddress, 100, map[int]int{55: 2}), nil, tally{Sent: 1000, Lost: 2}},
		"nor long before the kill": {heard(traffic.ByAPIOldAddress, 100, map[int]int{39: 2}), kill, tally{Sent: 590, Lost: 2, BlamedSent: 410}},
	} {
		t.Run(name, func(t *testing.T) {
			got := count(test.heard, at(0), at(100), test.kills)
			if (len(got.Losses) > 0) != (test.want.Lost > 0) {
				t.Errorf("it says %q", got.Losses)
			}
			got.Losses = nil
			if got.Sent != test.want.Sent || got.Lost != test.want.Lost || got.BlamedSent != test.want.BlamedSent ||
				got.BlamedLost != test.want.BlamedLost {
				t.Errorf("it counts %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestBrokenConnectionsCount(t *testing.T) {
	all := heard(traffic.ByStream, 10, nil)
	for _, series := range all {
		series[3].Reconnects = 1
	}
	got := count(all, at(0), at(10), nil)
	if got.Broken != 1 || len(got.Losses) != 1 {
		t.Errorf("it counts %+v", got)
	}
}

func TestVerdict(t *testing.T) {
	fine := tally{Sent: 1000, BlamedSent: 100, BlamedLost: 10}
	for name, test := range map[string]struct {
		control, with tally
		say           string
	}{
		"all is well":           {fine, fine, ""},
		"lost":                  {fine, tally{Sent: 1000, Lost: 1}, "1 of 1000 requests were lost"},
		"broken":                {fine, tally{Sent: 1000, Broken: 1}, "1 connections broke"},
		"the lab loses":         {tally{Sent: 1000, Lost: 1}, fine, "without any migration 1 of 1000"},
		"no one called":         {fine, tally{}, "and 0 during one"},
		"no control":            {tally{}, fine, "clients sent 0 requests without a migration"},
		"more after kills":      {fine, tally{Sent: 1000, BlamedSent: 100, BlamedLost: 40}, "40.0% of the requests"},
		"by chance a bit more":  {fine, tally{Sent: 1000, BlamedSent: 100, BlamedLost: 20}, ""},
		"kills without control": {tally{Sent: 1000}, tally{Sent: 1000, BlamedSent: 100, BlamedLost: 6}, "6.0% of the requests"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := verdict(test.control, test.with)
			found := slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, test.say) })
			if (test.say == "" && len(wrong) > 0) || (test.say != "" && !found) {
				t.Errorf("it says %q, want %q", wrong, test.say)
			}
		})
	}
}

func TestStages(t *testing.T) {
	var s stages
	if got := s.between(at(0), at(1)); len(got) > 0 || s.now() != model.Quiet {
		t.Errorf("before any it is %v, %s", got, s.now())
	}
	s.enter(model.Moving, at(10))
	s.enter(model.Overlap, at(20))
	s.enter(model.Quiet, at(40))
	for name, test := range map[string]struct {
		from, to int
		want     []model.Stage
	}{
		"before":           {0, 9, nil},
		"into the first":   {9, 11, []model.Stage{model.Moving}},
		"within the first": {12, 13, []model.Stage{model.Moving}},
		"across":           {18, 21, []model.Stage{model.Moving, model.Overlap}},
		"just after":       {22, 23, []model.Stage{model.Moving, model.Overlap}},
		"long after":       {30, 31, []model.Stage{model.Overlap}},
		"after the last":   {44, 44, []model.Stage{model.Overlap, model.Quiet}},
		"at the end":       {60, 61, []model.Stage{model.Quiet}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.between(at(test.from), at(test.to)); !slices.Equal(got, test.want) {
				t.Errorf("they are %v, want %v", got, test.want)
			}
		})
	}
}
