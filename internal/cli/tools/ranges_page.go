package tools

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/network/ranges"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

type rangesPage struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Clusters   []clusterRanges  `json:"clusters"`
	Networks   []ranges.Range   `json:"networks"`
	Overlaps   []ranges.Overlap `json:"overlaps"`
	// Shared are those in shared address space, 100.64.0.0/10.
	Shared []ranges.Range `json:"sharedAddressSpace"`

	looks []rangesLook
}

type clusterRanges struct {
	Name      string         `json:"name"`
	Server    string         `json:"server,omitempty"`
	Snapshot  *time.Time     `json:"snapshot,omitempty"`
	Error     string         `json:"error,omitempty"`
	Ranges    []ranges.Range `json:"ranges"`
	NotRead   []string       `json:"notRead"`
	Tailscale []string       `json:"tailscale"`
	Free      []freeRanges   `json:"free"`
}

type freeRanges struct {
	For     ranges.Use     `json:"for"`
	Size    string         `json:"size,omitempty"`
	Ranges  []netip.Prefix `json:"ranges"`
	Certain bool           `json:"certain"`
}

func newRangesPage(looks []rangesLook, asked rangesAsked) *rangesPage {
	p := &rangesPage{
		APIVersion: command.HeadOf("", "").APIVersion,
		Kind:       "Ranges",
		Networks:   append([]ranges.Range{}, asked.networks...),
		looks:      looks,
	}
	all, certain := slices.Clone(asked.networks), true
	var wishes []ranges.Wish
	for _, look := range looks {
		if look.err == nil {
			all = append(all, look.of.Ranges...)
			wishes = append(wishes, ranges.Wishes(look.of.Name, look.of.Seed, look.of.Ranges, asked.sizes)...)
		}
		certain = certain && look.err == nil && len(look.of.NotRead) == 0
	}
	proposals := ranges.Propose(ranges.Taken(all), wishes, asked.count)
	for _, look := range looks {
		p.Clusters = append(p.Clusters, look.part(proposals, certain))
	}
	p.Overlaps = append([]ranges.Overlap{}, ranges.Overlaps(all)...)
	p.Shared = append([]ranges.Range{}, ranges.InSharedSpace(all)...)
	return p
}

func (l rangesLook) part(proposals []ranges.Proposal, certain bool) clusterRanges {
	c := clusterRanges{Name: l.context, Ranges: []ranges.Range{}, NotRead: []string{}, Tailscale: []string{}, Free: []freeRanges{}}
	if !l.taken.IsZero() {
		c.Snapshot = &l.taken
	}
	if l.err != nil {
		c.Error = l.err.Error()
		return c
	}
	c.Name, c.Server = l.of.Name, l.of.Server
	c.Ranges = append(c.Ranges, l.of.Ranges...)
	c.NotRead = append(c.NotRead, l.of.NotRead...)
	c.Tailscale = append(c.Tailscale, l.of.Tailscale...)
	for _, one := range proposals {
		if one.Cluster != l.of.Name {
			continue
		}
		free := freeRanges{For: one.Use, Ranges: append([]netip.Prefix{}, one.Free...), Certain: certain}
		if one.Bits > 0 {
			free.Size = fmt.Sprintf("/%d", one.Bits)
		}
		c.Free = append(c.Free, free)
	}
	return c
}

func (o *rangesOptions) print(p *rangesPage) error {
	if len(p.looks) == 1 && p.looks[0].err != nil {
		return p.looks[0].problem()
	}
	var err error
	if o.format.Name == "table" {
		err = p.table(o.Out)
	} else {
		err = o.format.Print(o.Out.Verbatim(), p)
	}
	if err != nil {
		return err
	}
	ended := &RangesError{Overlaps: len(p.Overlaps), Of: len(p.looks)}
	for i, look := range p.looks {
		ended.NotRead += len(p.Clusters[i].NotRead)
		if look.err != nil {
			ended.Unread++
			command.Report(o.Err, o.Name, look.problem())
		}
	}
	if len(p.Networks) == 0 {
		o.Hint("networks of a cloud, an office or a VPN are in no cluster: name them with --network NAME=CIDR")
	}
	if ended.Error() == "" {
		return nil
	}
	return ended
}

func (l rangesLook) problem() error {
	if l.context == "" {
		return l.err
	}
	err := fmt.Errorf("context %s: %w", l.context, l.err)
	if command.HintOf(err) == "" {
		return &fault.Hinted{Err: err, Hint: "does kubectl --context " + l.context + " get nodes work?"}
	}
	return err
}

func (p *rangesPage) table(w io.Writer) error {
	for i := range p.Clusters {
		if err := p.Clusters[i].table(w); err != nil {
			return err
		}
	}
	for i := range p.Networks {
		fmt.Fprintf(w, "network %s (%s)\n", p.Networks[i].Prefix, p.Networks[i].Source)
	}
	for i := range p.Overlaps {
		fmt.Fprintf(w, "OVERLAP %s and %s\n", spelled(p.Overlaps[i].A), spelled(p.Overlaps[i].B))
	}
	if len(p.Overlaps) == 0 {
		fmt.Fprintln(w, "no overlap was found")
	}
	for _, r := range p.Shared {
		fmt.Fprintf(w, "WARNING %s is in %s, shared address space (RFC 6598): Tailscale and some clouds give machines addresses of it\n",
			spelled(r), ranges.SharedSpace())
	}
	return p.free(w)
}

func (f *freeRanges) String() string {
	var texts []string
	for _, r := range f.Ranges {
		texts = append(texts, r.String())
	}
	switch {
	case f.Size == "":
		return "of no known size"
	case len(texts) == 0:
		return "none"
	}
	return strings.Join(texts, ", ")
}

func spelled(r ranges.Range) string {
	of := ""
	if r.Cluster != "" {
		of = " of " + r.Cluster
	}
	return fmt.Sprintf("%s %s%s (%s)", r.Use, r.Prefix, of, r.Source)
}

func (c *clusterRanges) table(w io.Writer) error {
	if c.Error != "" {
		_, err := fmt.Fprintf(w, "cluster %s: not read\n\n", c.Name)
		return err
	}
	fmt.Fprintf(w, "cluster %s (%s)\n", c.Name, c.Server)
	if c.Snapshot != nil {
		fmt.Fprintf(w, "this is of a snapshot, taken at %s\n", c.Snapshot.UTC().Format(time.RFC3339))
	}
	rows := [][]string{{"USE", "RANGE", "SOURCE"}}
	for _, r := range c.Ranges {
		rows = append(rows, []string{string(r.Use), r.Prefix.String(), r.Source})
	}
	if err := terminal.Table(w, rows); err != nil {
		return err
	}
	for _, text := range c.NotRead {
		fmt.Fprintln(w, "not read:", text)
	}
	if len(c.Tailscale) > 0 {
		fmt.Fprintf(w, "Tailscale runs here, whose machines have addresses in %s: %s\n", ranges.SharedSpace(),
			strings.Join(c.Tailscale, ", "))
	}
	fmt.Fprintln(w)
	return nil
}

func (p *rangesPage) free(w io.Writer) error {
	rows, certain, unsized := [][]string{{"CLUSTER", "FOR", "SIZE", "FREE"}}, true, false
	for i := range p.Clusters {
		for _, f := range p.Clusters[i].Free {
			certain, unsized = certain && f.Certain, unsized || f.Size == ""
			rows = append(rows, []string{p.Clusters[i].Name, string(f.For), cmp.Or(f.Size, "-"), f.String()})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	fmt.Fprintln(w)
	if err := terminal.Table(w, rows); err != nil {
		return err
	}
	if unsized {
		fmt.Fprintln(w, "note: where no range was read, --service-size and --pod-size say how wide one is to be")
	}
	if !certain {
		fmt.Fprintln(w, "note: not everything was read, so that what is shown as free may be in use")
	}
	return nil
}
