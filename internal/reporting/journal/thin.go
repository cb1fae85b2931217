package journal

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

type level struct {
	seconds int64
	// bare leaves out the details of phases as well.
	bare bool
}

func levels() []level {
	return []level{{seconds: 60}, {seconds: 600}, {seconds: 3600}, {seconds: 3600, bare: true}}
}

func thinned(cm *corev1.ConfigMap, to level) ([]byte, error) {
	var all []*record
	if err := each(cm, func(r *record) { all = append(all, r) }); err != nil {
		return nil, err
	}
	if to.bare {
		all = slices.DeleteFunc(all, (*record).detail)
	}
	var plain []byte
	for _, r := range coarse(all, to.seconds) {
		line, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		plain = append(append(plain, line...), '\n')
	}
	return plain, nil
}

// coarse merges samples of a probe and run in the same stretch. The last record stays: its number
// says that all before it are stored.
func coarse(all []*record, seconds int64) []*record {
	type key struct {
		run, probe string
		slot       int64
	}
	sums := map[key]Sample{}
	keyOf := func(r *record) key { return key{run: r.Run, probe: r.Sample.Probe, slot: r.Sample.Start / seconds} }
	for _, r := range all {
		if r.Sample != nil {
			sums[keyOf(r)] = Merge(sums[keyOf(r)], *r.Sample)
		}
	}
	var out []*record
	for _, r := range slices.Backward(all) {
		if r.Sample != nil {
			sum, ok := sums[keyOf(r)]
			if !ok {
				continue
			}
			delete(sums, keyOf(r))
			r.Sample = &sum
		}
		out = append(out, r)
	}
	slices.Reverse(out)
	return out
}

// Merge puts two stretches of a probe together; a zero Sample is none.
func Merge(a, b Sample) Sample {
	if a.End == 0 {
		return b
	}
	if b.End == 0 {
		return a
	}
	out := Sample{
		Probe: a.Probe, Start: min(a.Start, b.Start), End: max(a.End, b.End),
		Sent: a.Sent + b.Sent, Failed: a.Failed + b.Failed,
		Late: a.Late + b.Late, NotMeasured: a.NotMeasured + b.NotMeasured, P99: max(a.P99, b.P99), Max: max(a.Max, b.Max),
	}
	good, goodB := a.Sent-a.Failed, b.Sent-b.Failed
	if good+goodB > 0 {
		out.P50 = (a.P50*good + b.P50*goodB) / (good + goodB)
	}
	return out
}
