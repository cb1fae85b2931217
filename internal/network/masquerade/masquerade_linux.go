package masquerade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

const chainName = "postrouting"

// families have a table each: kernels before 5.2 have no NAT in one for both.
func families() []nftables.TableFamily {
	return []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}
}

func familyOf(p RangePair) nftables.TableFamily {
	if p.From.Addr().Is4() {
		return nftables.TableFamilyIPv4
	}
	return nftables.TableFamilyIPv6
}

func familyName(f nftables.TableFamily) string {
	if f == nftables.TableFamilyIPv4 {
		return "ip"
	}
	return "ip6"
}

func byFamily(pairs []RangePair) map[nftables.TableFamily][]RangePair {
	out := map[nftables.TableFamily][]RangePair{}
	for _, p := range pairs {
		out[familyOf(p)] = append(out[familyOf(p)], p)
	}
	return out
}

// chain comes before networks and kube-proxy, which use the source NAT priority.
func chain(t *nftables.Table) *nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return &nftables.Chain{
		Table: t, Name: chainName, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 10), Policy: &accept,
	}
}

// Apply writes the rules in one transaction, and reports whether they were missing.
func Apply(pairs []RangePair) (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	missing := (*MissingError)(nil)
	switch err := check(c, pairs); {
	case err == nil:
		return false, nil
	case !errors.As(err, &missing):
		return false, err
	}
	want := byFamily(pairs)
	for _, f := range families() {
		if err := replace(c, f, want[f]); err != nil {
			return false, err
		}
	}
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("writing the table %s of nftables: %w", Table, err)
	}
	return true, nil
}

func replace(c *nftables.Conn, f nftables.TableFamily, pairs []RangePair) error {
	if err := remove(c, f); err != nil || len(pairs) == 0 {
		return err
	}
	ch := c.AddChain(chain(c.AddTable(&nftables.Table{Name: Table, Family: f})))
	for _, p := range pairs {
		c.AddRule(&nftables.Rule{Table: ch.Table, Chain: ch, Exprs: keeping(p)})
	}
	return nil
}

func remove(c *nftables.Conn, f nftables.TableFamily) error {
	t, err := find(c, f)
	if t != nil {
		c.DelTable(t)
	}
	return err
}

// find returns nil also for a node without IPv6 or nftables.
func find(c *nftables.Conn, f nftables.TableFamily) (*nftables.Table, error) {
	all, err := c.ListTablesOfFamily(f)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing tables of nftables: %w", err)
	}
	for _, t := range all {
		if t.Name == Table {
			return t, nil
		}
	}
	return nil, nil
}

// Check returns a MissingError if the node's rules are not exactly these.
func Check(pairs []RangePair) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return check(c, pairs)
}

func check(c *nftables.Conn, pairs []RangePair) error {
	want := byFamily(pairs)
	for _, f := range families() {
		t, err := find(c, f)
		if err != nil {
			return err
		}
		name := familyName(f) + " " + Table
		switch {
		case t == nil && len(want[f]) == 0:
		case t == nil:
			return &MissingError{"there is no table " + name}
		case len(want[f]) == 0:
			return &MissingError{"the table " + name + " is of other ranges"}
		default:
			if err := checkTable(c, t, want[f]); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkTable(c *nftables.Conn, t *nftables.Table, want []RangePair) error {
	name := familyName(t.Family) + " " + Table
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return fmt.Errorf("listing chains of nftables: %w", err)
	}
	var have []*nftables.Chain
	for _, ch := range chains {
		if ch.Table.Name == Table {
			have = append(have, ch)
		}
	}
	if len(have) != 1 || !same(have[0], chain(t)) {
		return &MissingError{"the table " + name + " has not the chain that it should have"}
	}
	rules, err := c.GetRules(t, have[0])
	if err != nil {
		return fmt.Errorf("listing rules of the table %s: %w", name, err)
	}
	if len(rules) != len(want) {
		return &MissingError{fmt.Sprintf("the table %s has %d rules and not %d", name, len(rules), len(want))}
	}
	for i, p := range want {
		if plain(rules[i].Exprs) != plain(keeping(p)) {
			return &MissingError{fmt.Sprintf("the table %s has another rule in place of the one from %s", name, p)}
		}
	}
	return nil
}

func same(a, b *nftables.Chain) bool {
	if a.Hooknum == nil || a.Priority == nil || a.Policy == nil {
		return false
	}
	return a.Name == b.Name && a.Type == b.Type && *a.Hooknum == *b.Hooknum && *a.Priority == *b.Priority && *a.Policy == *b.Policy
}

// Maintain restores the rules until ctx ends, and leaves them: a restart must not change addresses
// of connections. Failures after the first attempt are reported and retried.
func Maintain(ctx context.Context, pairs []RangePair, every time.Duration, say func(error)) error {
	if _, err := Apply(pairs); err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch back, err := Apply(pairs); {
		case err != nil:
			say(err)
		case back:
			say(fmt.Errorf("the table %s of nftables was changed or removed, and is back", Table))
		}
	}
}

// Remove takes the rules away. Connections keep the addresses that they have.
func Remove() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, f := range families() {
		if err := remove(c, f); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("removing the table %s of nftables: %w", Table, err)
	}
	return nil
}
