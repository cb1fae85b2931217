package nodecleanup

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/replumb/replumb/internal/network/ipvs"
)

// Check asks the node. The report has what does not hold as problems; what
// cannot be read is an error.
func (s ServiceQuery) Check(ctx context.Context) (*TracesReport, error) {
	r := &TracesReport{Problems: s.reach(ctx)}
	if s.Programmed.IsValid() {
		has, err := s.await(ctx, s.Programmed, s.Timeout)
		if err != nil {
			return nil, err
		}
		if !has {
			r.Problems = append(r.Problems, fmt.Sprintf("kube-proxy has written no rule for %s within %s", s.Programmed, s.Timeout))
		}
	}
	if s.Unprogrammed.IsValid() {
		has, err := s.await(ctx, s.Unprogrammed, s.Quiet)
		if err != nil {
			return nil, err
		}
		if has {
			r.Problems = append(
				r.Problems,
				fmt.Sprintf("kube-proxy still runs: it has written a rule for %s, which is new", s.Unprogrammed),
			)
		}
	}
	return r, nil
}

// await looks for rules for an address until they are there or the time is over.
func (s ServiceQuery) await(ctx context.Context, to netip.Addr, limit time.Duration) (has bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if has, err = s.programmed(to); has || err != nil {
			return has, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
		}
	}
}

// programmed reports whether kube-proxy has rules for packets to the address of a Service; or, in
// mode ipvs, a virtual server.
func (s ServiceQuery) programmed(to netip.Addr) (bool, error) {
	if s.InIPVS {
		servers, err := ipvs.Servers()
		return slices.ContainsFunc(servers, func(s ipvs.VirtualServer) bool { return s.At.Addr() == to }), err
	}
	c, err := openNFTables()
	if err != nil {
		return false, err
	}
	has, err := inMaps(c, to)
	if err == nil && !has {
		has, err = inChains(c, to)
	}
	if err != nil || has {
		return has, err
	}
	err = legacyPart{s.Host, kubeProxy()}.saves(func(save string) { has = has || inSave(save, to) })
	return has, err
}

// inMaps looks into the maps of mode nftables, whose keys begin with the address.
func inMaps(c *nftables.Conn, to netip.Addr) (bool, error) {
	tables, err := c.ListTables()
	if noNetfilter(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing tables of nftables: %w", err)
	}
	for _, t := range tables {
		if t.Name != proxyTable {
			continue
		}
		sets, err := c.GetSets(t)
		if err != nil {
			return false, fmt.Errorf("listing maps of table %s: %w", t.Name, err)
		}
		for _, set := range sets {
			elements, err := c.GetSetElements(set)
			if err != nil {
				return false, fmt.Errorf("reading map %s: %w", set.Name, err)
			}
			if slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return bytes.HasPrefix(e.Key, to.AsSlice()) }) {
				return true, nil
			}
		}
	}
	return false, nil
}

// inChains looks into the chain of mode iptables that leads from the addresses of Services, in all
// tables that iptables keeps in nftables.
func inChains(c *nftables.Conn, to netip.Addr) (bool, error) {
	chains, err := c.ListChains()
	if noNetfilter(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing chains of nftables: %w", err)
	}
	for _, ch := range chains {
		if ch.Name != proxyChain {
			continue
		}
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return false, fmt.Errorf("listing rules of chain %s: %w", ch.Name, err)
		}
		if slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return compares(r, to) }) {
			return true, nil
		}
	}
	return false, nil
}

func compares(r *nftables.Rule, to netip.Addr) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		cmp, ok := e.(*expr.Cmp)
		return ok && cmp.Op == expr.CmpOpEq && bytes.Equal(cmp.Data, to.AsSlice())
	})
}
