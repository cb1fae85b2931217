package dnscutover

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/network/dnsrecords/provider"
)

const most = 16

// PairedName is a name with all that it takes to lead it to the other side, and back.
type PairedName struct {
	Name  v1alpha1.RedirectName
	Move  *dnsrecords.RecordMove
	Probe BalancerProbe
	// Patience is how long the other side may take until it answers. Default: two minutes.
	Patience time.Duration
}

func (l *PairedName) id() string { return l.Name.Name + "/" + string(l.Name.Type) }

func (l *PairedName) ends(to engine.Direction) (from, there []string) {
	if to == engine.Backward {
		return l.Name.To, l.Name.From
	}
	return l.Name.From, l.Name.To
}

func (l *PairedName) arrived(ctx context.Context, to engine.Direction) (bool, error) {
	place, err := l.Move.Position(ctx)
	if to == engine.Backward {
		return place == dnsrecords.AtOld, err
	}
	return place == dnsrecords.AtNew, err
}

// Deps are what names are led with.
type Deps struct {
	// Client asks name servers. The zero value is ready.
	Client *dnsrecords.Client
	// Secrets reads keys and certificates of the cluster that has the Migration.
	Secrets provider.Secrets
	// Memory keeps what records were.
	Memory dnsrecords.Memory
	// GateWait is how long servers, caches and people may take. Default: an hour.
	GateWait time.Duration
	Now      func() time.Time
}

// Open prepares paired names: keys, credentials and certificates are read, and no record is. Errors
// are *spec.Error or *records.Error.
func Open(ctx context.Context, t Deps, names []v1alpha1.RedirectName, s v1alpha1.RedirectSpec) ([]*PairedName, error) {
	var specs []v1alpha1.RecordSpec
	for i, n := range names {
		r := Record(n, s)
		valid := r
		valid.Name = strings.TrimPrefix(r.Name, "*.")
		if err := dnsrecords.Validate(fmt.Sprintf("spec.mirror.redirect.names[%d]", i), &valid); err != nil {
			return nil, err
		}
		specs = append(specs, r)
	}
	registry := Registry{Owners: s.Owners, Prefix: s.TXTPrefix, Suffix: s.TXTSuffix, Wildcard: s.TXTWildcard}
	moves, err := provider.Moves(ctx, specs, t.Client, t.Secrets, t.Memory)
	if err != nil {
		return nil, err
	}
	var all []*PairedName
	for i, m := range moves {
		m.Straight, m.Patience, m.Now = true, t.GateWait, t.Now
		m.Allowed = registry.Allowed(m.Provider(), names[i].Name, names[i].Type)
		l := &PairedName{Name: names[i], Move: m}
		if names[i].Probe != nil {
			l.Probe.RedirectProbe = *names[i].Probe
		}
		if l.Probe.Roots, err = roots(ctx, t.Secrets, l.Probe.CASecret); err != nil {
			return nil, &Error{Name: l.Name.Name, Problem: err.Error(), Err: err, Hint: "write a Secret with ca.crt under probe.caSecret"}
		}
		all = append(all, l)
	}
	return all, nil
}

// Record is the record of a paired name, defaulted.
func Record(n v1alpha1.RedirectName, s v1alpha1.RedirectSpec) v1alpha1.RecordSpec {
	r := v1alpha1.RecordSpec{
		Name: n.Name, Type: n.Type, From: n.From, To: n.To, TTL: s.TTL, Resolvers: s.Resolvers, Drain: s.Drain,
	}
	if s.Provider != nil {
		r.Provider = *s.Provider
	}
	dnsrecords.Default(&r)
	return r
}

func roots(ctx context.Context, secrets provider.Secrets, ref *v1alpha1.SecretReference) (*x509.CertPool, error) {
	if ref == nil {
		return nil, nil
	}
	at := ref.Namespace + "/" + ref.Name
	data, err := secrets(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", at, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data["ca.crt"]) {
		return nil, fmt.Errorf("secret %s has no certificate under ca.crt", at)
	}
	return pool, nil
}

// Looked finds names whose record cannot be moved, by the title of their Move.
func Looked(ctx context.Context, all []*PairedName) map[string]error {
	problems := map[string]error{}
	for _, l := range all {
		if _, err := l.Move.Load(ctx); err != nil {
			problems[l.Move.Title()] = err
		}
	}
	return problems
}

// Options of plans.
type Options struct {
	// Migration that the plan is part of.
	Migration string
	// Parallel is how many names move together. Default: all.
	Parallel int
	// Quiet, if set, is asked whether the load balancers that were left have new connections.
	Quiet *v1alpha1.Action
	Now   func() time.Time
}

// Lower lowers times to live, all at once, and waits until no one remembers the long ones.
func Lower(all []*PairedName) []engine.Group {
	return dnsrecords.Together("time to live", most, moves(all), (*dnsrecords.RecordMove).Lower)
}

// There moves names to the target, in chunks, once their TTLs are low. A name that fails its probe
// stays, out of its chunk, and so do those after it.
func There(all []*PairedName, o Options) []engine.Group {
	return travel(all, o, engine.Forward, "to the target", (*dnsrecords.RecordMove).Switch)
}

// LeadBack returns names to the source. TTLs stay low, since names may move again.
func LeadBack(all []*PairedName, o Options) []engine.Group {
	return travel(all, o, engine.Backward, "back to the source", (*dnsrecords.RecordMove).SwitchBack)
}

// Restore gives names that are back at the source their times to live back.
func Restore(all []*PairedName) []engine.Group {
	return dnsrecords.Together("time to live", most, moves(all), (*dnsrecords.RecordMove).RestoreBack)
}

func travel(all []*PairedName, o Options, to engine.Direction, title string, steps func(*dnsrecords.RecordMove) []engine.Step) []engine.Group {
	var groups []engine.Group
	size := o.Parallel
	if size <= 0 {
		size = max(1, len(all))
	}
	for chunk := range slices.Chunk(byTitle(all), size) {
		probes := engine.Group{Title: "probe", Parallel: most}
		for _, l := range chunk {
			probes.Steps = append(probes.Steps, &ProbeStep{lead: l, to: to})
		}
		groups = append(groups, probes)
		groups = append(groups, dnsrecords.Together(title, most, moves(chunk), steps)...)
	}
	if o.Quiet != nil && len(all) > 0 {
		groups = append(groups, engine.Group{Title: "quiet", Parallel: 1, Steps: []engine.Step{quiet(all, o, to)}})
	}
	return groups
}

// byTitle keeps the records of one name together, so that dual-stack clients get both from one
// side.
func byTitle(all []*PairedName) []*PairedName {
	return slices.SortedStableFunc(slices.Values(all), func(a, b *PairedName) int { return strings.Compare(a.id(), b.id()) })
}

func quiet(all []*PairedName, o Options, to engine.Direction) *QuietStep {
	r := QuietRequest{Migration: o.Migration, Side: v1alpha1.ServingSource, Names: []string{}, Addresses: []string{}}
	if to == engine.Backward {
		r.Side = v1alpha1.ServingTarget
	}
	for _, l := range byTitle(all) {
		left, _ := l.ends(to)
		r.Names = append(r.Names, l.Name.Name)
		for _, v := range left {
			r.Addresses = append(r.Addresses, dnsrecords.Host(v))
		}
	}
	slices.Sort(r.Addresses)
	r.Names, r.Addresses = slices.Compact(r.Names), slices.Compact(r.Addresses)
	return &QuietStep{Name: prefix(to) + "quiet", Action: *o.Quiet, Request: r, Now: o.Now}
}

func moves(all []*PairedName) []*dnsrecords.RecordMove {
	var out []*dnsrecords.RecordMove
	for _, l := range all {
		out = append(out, l.Move)
	}
	return out
}
