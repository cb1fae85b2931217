package htmlreport

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// Build makes the report. It reads nothing.
func Build(in Input) *Document {
	if in.History == nil {
		in.History = &journal.History{}
	}
	m, h := in.Migration, in.History
	d := &Document{
		Migration: m.Name, Kind: in.Words.Kind, From: in.Words.From, To: in.Words.To, Cluster: in.Cluster, Phase: m.Status.Phase, Problem: m.Status.LastError, Made: in.Now.UTC(),
		Runs: []Run{}, Timeline: []Span{}, Probes: []Probe{}, Losses: losses(in), Gates: []Gate{}, Confirms: confirms(m),
		Findings: []Finding{}, Users: users(in), Versions: versions(in), Notes: notes(in), Nodes: nodes(m),
	}
	d.Runs = append(d.Runs, runs(h)...)
	d.Timeline = append(d.Timeline, timeline(h, d.Runs, m.Status.Tiers)...)
	d.Probes = append(d.Probes, probes(h.Samples, d.Losses)...)
	d.Services = services(in)
	d.Gates = append(d.Gates, gates(h, d.Runs)...)
	d.Findings = append(d.Findings, findingRows(h, d.Runs)...)
	d.Effort, d.Counts = h.Effort(), counts(in, d.Services)
	if d.Requests = d.requests(m); d.Requests != nil {
		d.Notes = append(d.Notes, d.unlisted()...)
	}
	d.Work, d.Verdict = d.work(in), d.verdict()
	d.Summary = d.Work + "; " + d.Verdict
	return d
}

// counts are those of status, or else those that were recorded, which know nothing of a run that
// stopped within a batch.
func counts(in Input, all []Service) v1alpha1.Counts {
	if in.Counts != nil {
		return *in.Counts
	}
	recorded, moved := in.Migration.Status.Counts, 0
	for _, s := range all {
		if s.State == stateMoved {
			moved++
		}
	}
	recorded.Moved = max(recorded.Moved, moved)
	return recorded
}

// requests of all probes, and the connections that were lost: those that were made are not counted.
// Without samples, what the latest run has counted.
func (d *Document) requests(m *v1alpha1.Migration) *Requests {
	all := &Requests{}
	if p := m.Status.Proof; len(d.Probes) == 0 && p != nil {
		all.Sent, all.Failed, all.Late, all.NotMeasured = p.Sent, p.Failed, p.Late, p.NotMeasured
	}
	sampled := map[string]bool{}
	for _, p := range d.Probes {
		sampled[p.Name] = true
		all.Sent += p.Sent
		all.Failed += p.Failed
		all.Late += p.Late
		all.NotMeasured += p.NotMeasured
	}
	other := int64(0)
	for _, l := range d.Losses {
		if !sampled[l.Probe] {
			other += int64(l.Failed)
		}
	}
	if len(d.Probes) == 0 { // then losses are among what was counted
		other = max(0, other-all.Failed)
	}
	all.Sent += other
	all.Failed += other
	if all.Sent+all.NotMeasured == 0 {
		return nil
	}
	return all
}

// unlisted says how many failed requests are in no entry of the list of losses.
func (d *Document) unlisted() []string {
	listed := int64(0)
	for _, l := range d.Losses {
		listed += int64(l.Failed)
	}
	if d.Requests.Unlisted = max(0, d.Requests.Failed-listed); d.Requests.Unlisted == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d of %d failed requests are in no entry of the list of losses: they were counted, and when and where "+
		"each failed is not recorded", d.Requests.Unlisted, d.Requests.Failed)}
}

// losses of the journal, and those of the status that it has not.
func losses(in Input) []Loss {
	all := slices.Clone(in.History.Losses)
	if p := in.Migration.Status.Proof; p != nil {
		all = append(all, p.Losses...)
	}
	seen := map[string]int{}
	out := []Loss{}
	for _, l := range all {
		key := fmt.Sprint(l.Node, l.Probe, l.Address, l.Start.UnixMicro())
		line := Loss{
			Node: l.Node, Probe: l.Probe, Address: l.Address, Start: l.Start.UTC(), End: l.End.UTC(), Failed: l.Failed, Error: l.Error,
		}
		if i, ok := seen[key]; ok { // reported again as it went on
			if line.Failed > out[i].Failed {
				out[i] = line
			}
			continue
		}
		seen[key] = len(out)
		out = append(out, line)
	}
	slices.SortStableFunc(out, func(a, b Loss) int { return a.Start.Compare(b.Start) })
	return out
}

// vouching are the annotations by which people vouch for what replumb cannot see.
func vouching() []string {
	return []string{
		v1alpha1.AnnotationAPIServers, v1alpha1.AnnotationControllerManagers, v1alpha1.AnnotationDualWrite,
		v1alpha1.AnnotationInstaller, v1alpha1.AnnotationKubelets, v1alpha1.AnnotationSingletons,
	}
}

// vouches reports whether an annotation does so. An approval does if it answers for a gate.
func vouches(name, value string) bool {
	return slices.Contains(vouching(), name) || name == v1alpha1.AnnotationApprove && strings.Contains(value, "gate:")
}

// confirms are the annotations by which people vouch for what cannot be seen, with what the API
// server knows of who set them. Annotations of replumb itself vouch for nothing.
func confirms(m *v1alpha1.Migration) []Confirm {
	out := []Confirm{}
	for _, name := range slices.Sorted(maps.Keys(m.Annotations)) {
		if !vouches(name, m.Annotations[name]) {
			continue
		}
		c := Confirm{Annotation: name, Value: m.Annotations[name]}
		for _, f := range m.ManagedFields {
			if f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:`+name+`"`) {
				c.Manager, c.At = f.Manager, utc(f.Time)
			}
		}
		out = append(out, c)
	}
	return out
}

func utc(t *metav1.Time) *time.Time {
	if t == nil {
		return nil
	}
	at := t.UTC()
	return &at
}

// findingRows are the findings that did not pass, each once, and flags that overrode some.
func findingRows(h *journal.History, all []Run) []Finding {
	var out []Finding
	for _, r := range all {
		for _, flag := range r.Overrides {
			out = append(out, Finding{Code: flag, Severity: "override", Outcome: "overridden", By: r.By()})
		}
	}
	seen := map[findings.Finding]bool{}
	for _, f := range h.Findings {
		if seen[f.Finding] {
			continue
		}
		seen[f.Finding] = true
		out = append(out, Finding{
			Code: f.Code, Severity: string(f.Severity), Outcome: string(f.Outcome), Claim: f.Claim, Object: f.Object, Message: f.Message,
		})
	}
	return out
}

// users of old addresses, as the journal and the nodes tell, each as it was last seen.
func users(in Input) []OldAddressClient {
	all := slices.Clone(in.History.Stragglers)
	for i := range in.Reports {
		for _, c := range in.Reports[i].Status.Clients {
			all = append(all, journal.Straggler{Node: in.Reports[i].Name, OldAddressClient: c})
		}
	}
	last := map[string]OldAddressClient{}
	for _, s := range all {
		c := OldAddressClient{
			Node: s.Node, Client: cmp.Or(s.Pod, "the node itself"), Service: s.Service, Address: s.Address, Protocol: s.Protocol,
			Seen: s.LastSeen.UTC(), Open: s.Open,
		}
		if s.Source != "" {
			c.Client += " (" + s.Source + ")"
		}
		key := fmt.Sprint(c.Node, c.Client, c.Address, c.Protocol)
		if have, ok := last[key]; !ok || !c.Seen.Before(have.Seen) {
			last[key] = c
		}
	}
	out := slices.Collect(maps.Values(last))
	slices.SortFunc(out, func(a, b OldAddressClient) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Client, b.Client), strings.Compare(a.Address, b.Address))
	})
	return append([]OldAddressClient{}, out...)
}

// versions of what took part, the present ones last.
func versions(in Input) []Version {
	out := []Version{}
	add := func(v Version) {
		same := func(w Version) bool { return w.Of == v.Of && w.Version == v.Version }
		if i := slices.IndexFunc(out, same); i >= 0 {
			out[i].Nodes = v.Nodes
		} else if v.Version != "" {
			out = append(out, v)
		}
	}
	for _, r := range in.History.Runs {
		add(Version{Of: "replumb", Version: r.Version})
	}
	for i := range in.Reports {
		for _, a := range in.Reports[i].Status.Agents {
			add(Version{Of: "agents", Version: a.Version})
		}
	}
	for _, r := range in.History.Runs {
		add(Version{Of: "API server", Version: r.APIServer})
	}
	add(Version{Of: "API server", Version: in.APIServer})
	kubelets := map[string]int{}
	for _, r := range in.History.Runs {
		maps.Copy(kubelets, r.Kubelets)
	}
	maps.Copy(kubelets, in.Kubelets)
	for _, v := range slices.Sorted(maps.Keys(kubelets)) {
		add(Version{Of: "kubelet", Version: v, Nodes: kubelets[v]})
	}
	return out
}

// notes say what the report lacks.
func notes(in Input) []string {
	out := append([]string{}, in.Unread...)
	if len(in.History.Runs) == 0 {
		out = append(out, "there is no journal of this migration: what happened is known only as far as objects tell")
	}
	if in.History.Thinned {
		out = append(out, "the journal had no room for all samples: some cover a minute or more; losses and phases are complete")
	}
	for _, d := range in.History.Damaged {
		out = append(out, "a part of the journal cannot be read: "+d)
	}
	return out
}

// nodes that leave, in a migration of nodes.
func nodes(m *v1alpha1.Migration) []NodeLine {
	var out []NodeLine
	for _, n := range m.Status.Nodes {
		line := NodeLine{Name: n.Name, Role: string(n.Role), Addresses: n.Addresses, State: "there"}
		switch {
		case n.Gone:
			line.State = "gone"
		case n.Ended:
			line.State = "its end is asked for"
		}
		out = append(out, line)
	}
	return out
}
