package nodecleanup

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nftPart is in nftables: the network's tables, and in iptables' tables its chains, jumps to them,
// and rules with its comments. It talks to the kernel, since the writing program is often in the
// network's image only.
type nftPart struct{ NetworkTraces }

// nftFinds is what there is in nftables.
type nftFinds struct {
	tables []*nftables.Table
	chains []*nftables.Chain
	rules  []*nftables.Rule
}

func (p nftPart) look(c *nftables.Conn) (*nftFinds, error) {
	out := &nftFinds{}
	tables, err := c.ListTables()
	if noNetfilter(err) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing tables of nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("listing chains of nftables: %w", err)
	}
	for _, t := range tables {
		if slices.Contains(p.Tables, t.Name) {
			out.tables = append(out.tables, t)
		}
	}
	for _, ch := range chains {
		switch {
		case slices.Contains(p.Tables, ch.Table.Name):
		case p.ownChain(ch.Table.Name, ch.Name):
			out.chains = append(out.chains, ch)
		default:
			rules, err := p.rules(c, ch)
			if err != nil {
				return nil, err
			}
			out.rules = append(out.rules, rules...)
		}
	}
	if p.fileOnly() {
		out.take(chains)
	}
	return out, nil
}

// take adds the chains of pods that rules lead to, which have no name of their own.
func (f *nftFinds) take(chains []*nftables.Chain) {
	for _, ch := range chains {
		led := slices.ContainsFunc(f.rules, func(r *nftables.Rule) bool {
			return r.Table.Name == ch.Table.Name && r.Table.Family == ch.Table.Family &&
				slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
					v, ok := e.(*expr.Verdict)
					return ok && v.Chain == ch.Name && podChain.MatchString(v.Chain)
				})
		})
		if led {
			f.chains = append(f.chains, ch)
		}
	}
}

func noNetfilter(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

func (p nftPart) rules(c *nftables.Conn, ch *nftables.Chain) ([]*nftables.Rule, error) {
	all, err := c.GetRules(ch.Table, ch)
	if err != nil {
		return nil, fmt.Errorf("listing rules of chain %s: %w", ch.Name, err)
	}
	var out []*nftables.Rule
	for _, r := range all {
		if p.own(ch.Table.Name, r) {
			r.Table, r.Chain = ch.Table, ch // with the family, which rules do not say
			out = append(out, r)
		}
	}
	return out, nil
}

func (p nftPart) own(table string, r *nftables.Rule) bool {
	if hasPrefix(p.Comments, comment(r.UserData)) {
		return true
	}
	if p.crosses(r) {
		return true
	}
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Verdict:
			return e.Chain != "" && p.ownChain(table, e.Chain)
		case *expr.Match: // as some versions of iptables keep comments
			c, ok := e.Info.(*xt.Comment)
			return ok && e.Name == "comment" && hasPrefix(p.Comments, string(*c))
		}
		return false
	})
}

// crosses reports an uncommented rule that names one of the network's interfaces.
func (p nftPart) crosses(r *nftables.Rule) bool {
	if len(p.Crossed) == 0 || comment(r.UserData) != "" {
		return false
	}
	names, crosses := false, false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Match:
			if e.Name == "comment" {
				return false
			}
		case *expr.Meta:
			names = e.Key == expr.MetaKeyIIFNAME || e.Key == expr.MetaKeyOIFNAME
		case *expr.Cmp:
			crosses = crosses || names && slices.Contains(p.Crossed, string(trimZero(e.Data)))
			names = false
		}
	}
	return crosses
}

// comment of a rule: type, length, text (libnftnl/include/libnftnl/udata.h).
func comment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		text := data[2 : 2+int(data[1])]
		if userdata.Type(data[0]) == userdata.TypeComment {
			return string(trimZero(text))
		}
		data = data[2+len(text):]
	}
	return ""
}

func trimZero(b []byte) []byte {
	if i := slices.Index(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}

// room is for what a node with tens of thousands of chains has in one transaction, and for the
// kernel's answers to it. The usual 208 KiB are full after some hundred chains: the kernel refuses
// the transaction (EMSGSIZE), or has no room to say how it went (ENOBUFS). Limits of the host do
// not hold for who may administer its network, and memory is taken as it is needed.
const room = 64 << 20

func openNFTables() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithSockOptions(func(socket *netlink.Conn) error {
		return errors.Join(socket.SetReadBuffer(room), socket.SetWriteBuffer(room))
	}))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return c, nil
}

func (p nftPart) find() ([]string, error) {
	c, err := openNFTables()
	if err != nil {
		return nil, err
	}
	finds, err := p.look(c)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range finds.tables {
		out = append(out, fmt.Sprintf("table %s %s", family(t.Family), t.Name))
	}
	for _, r := range finds.rules {
		out = append(out, fmt.Sprintf("rule in chain %s %s %s", family(r.Table.Family), r.Table.Name, r.Chain.Name))
	}
	for _, ch := range finds.chains {
		out = append(out, fmt.Sprintf("chain %s %s %s", family(ch.Table.Family), ch.Table.Name, ch.Name))
	}
	return out, nil
}

func family(f nftables.TableFamily) string {
	names := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
		nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
	}
	return names[f]
}

// remove takes everything away in one transaction: rules that jump, then what they jump to.
func (p nftPart) remove() error {
	c, err := openNFTables()
	if err != nil {
		return err
	}
	finds, err := p.look(c)
	if err != nil {
		return err
	}
	for _, r := range finds.rules {
		if err := c.DelRule(r); err != nil {
			return fmt.Errorf("a rule in chain %s: %w", r.Chain.Name, err)
		}
	}
	for _, ch := range finds.chains { // they jump to each other
		c.FlushChain(ch)
	}
	for _, ch := range finds.chains {
		c.DelChain(ch)
	}
	for _, t := range finds.tables {
		c.DelTable(t)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("removing chains of %s: %w", p.Name, err)
	}
	return nil
}
