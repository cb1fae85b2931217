package proxyrules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// saved is one table of iptables-save.
type saved struct {
	name     string
	policies map[string]string
	chains   []string
	rules    []rule
}

// rule is one line of iptables-save as its words. Quoted ones keep their quotes.
type rule struct {
	chain string
	words []string
}

func parseSave(text string) []*saved {
	var all []*saved
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			all = append(all, &saved{name: line[1:], policies: map[string]string{}})
		case len(all) == 0:
		case strings.HasPrefix(line, ":"):
			if f := strings.Fields(line[1:]); len(f) > 1 {
				t := all[len(all)-1]
				t.chains, t.policies[f[0]] = append(t.chains, f[0]), f[1]
			}
		case strings.HasPrefix(line, "-A "):
			if w := words(line[len("-A "):]); len(w) > 1 {
				all[len(all)-1].rules = append(all[len(all)-1].rules, rule{w[0], w[1:]})
			}
		}
	}
	return all
}

// words splits at blanks outside of quotes, as iptables-restore does.
func words(line string) (all []string) {
	var word strings.Builder
	quoted, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		case r == ' ' && !quoted:
			if word.Len() > 0 {
				all = append(all, word.String())
				word.Reset()
			}
			continue
		}
		word.WriteRune(r)
	}
	if word.Len() > 0 {
		all = append(all, word.String())
	}
	return all
}

// after is the word that follows one of these; empty if there is none.
func (r rule) after(flags ...string) string {
	for i, w := range r.words[:max(0, len(r.words)-1)] {
		if slices.Contains(flags, w) {
			return r.words[i+1]
		}
	}
	return ""
}

func (r rule) target() string { return r.after("-j", "-g") }

// spec is the rule with its target, if that is copied, exchanged for the copy.
func (r rule) spec(t *saved) string {
	out := slices.Clone(r.words)
	for i, w := range out[:max(0, len(out)-1)] {
		if (w == "-j" || w == "-g") && t.copies(out[i+1]) {
			out[i+1] = copied(out[i+1])
		}
	}
	return strings.Join(out, " ")
}

func copied(chain string) string {
	return nodecleanup.CopiedChains + strings.TrimPrefix(chain, proxyPrefix)
}

func ofCopy(chain string) bool { return strings.HasPrefix(chain, nodecleanup.CopiedChains) }

// copies reports whether a chain is one of those that lead packets to Services. Chains that reject
// are left out: a Service that had no endpoints may have some by now. Canaries tell kube-proxy and
// the kubelet that their rules were flushed; KUBE-MARK-DROP is the kubelet's.
func (t *saved) copies(chain string) bool {
	if t.name == "filter" {
		return chain == "KUBE-FORWARD"
	}
	return t.name == "nat" && slices.ContainsFunc([]string{
		"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-",
		"KUBE-EXT-", "KUBE-XLB-",
	}, func(p string) bool { return chain == p || strings.HasSuffix(p, "-") && strings.HasPrefix(chain, p) })
}

// leads reports whether kube-proxy has rules that lead to Services: none are left once another mode
// has begun.
func (t *saved) leads() bool {
	return t.name == "nat" && slices.ContainsFunc(t.rules, func(r rule) bool { return r.chain == "KUBE-SERVICES" && r.after("-d") != "" })
}

// unlinked reports whether an older copy is led to from more chains than kube-proxy's own: it
// removes its jumps before its chains (CleanupLeftovers in pkg/proxy/iptables of
// k8s.io/kubernetes).
func (t *saved) unlinked() bool {
	own, older := map[string]bool{}, map[string]bool{}
	for _, r := range t.rules {
		switch {
		case t.copies(r.chain) || ofCopy(r.chain):
		case ofCopy(r.target()):
			older[r.chain] = true
		case t.copies(r.target()):
			own[r.chain] = true
		}
	}
	return len(own) < len(older)
}

// copyIPTables reads iptables-save, and returns the input of iptables-restore --noflush that makes
// the copy, in the place of an older one. It is empty where kube-proxy has no rules: the copy that
// there is stays then.
func copyIPTables(save string) string {
	tables := parseSave(save)
	if !slices.ContainsFunc(tables, (*saved).leads) || slices.ContainsFunc(tables, (*saved).unlinked) {
		return ""
	}
	var out strings.Builder
	for _, t := range tables {
		t.copyTo(&out)
	}
	return out.String()
}

func (t *saved) copyTo(out *strings.Builder) {
	var lines, old []string
	for _, c := range t.chains {
		switch {
		case t.copies(c):
			lines = append(lines, ":"+copied(c)+" - [0:0]")
		case ofCopy(c) && !slices.Contains(t.chains, proxyPrefix+strings.TrimPrefix(c, nodecleanup.CopiedChains)):
			lines, old = append(lines, ":"+c+" - [0:0]"), append(old, "-X "+c)
		}
	}
	if len(lines) == 0 {
		return
	}
	for _, r := range t.rules {
		if ofCopy(r.target()) && !ofCopy(r.chain) {
			lines = append(lines, "-D "+r.chain+" "+strings.Join(r.words, " "))
		}
	}
	lines = append(lines, t.jumps()...)
	for _, r := range t.rules {
		if t.copies(r.chain) {
			lines = append(lines, "-A "+copied(r.chain)+" "+r.spec(t))
		}
	}
	fmt.Fprintf(out, "*%s\n%s\nCOMMIT\n", t.name, strings.Join(append(lines, old...), "\n"))
}

// jumps lead into the copy from the kernel's own chains, each right behind the one into
// kube-proxy's chain: what comes later there may end the way of a packet.
func (t *saved) jumps() (lines []string) {
	at := map[string]int{}
	for _, r := range t.rules {
		if t.copies(r.chain) || ofCopy(r.chain) || ofCopy(r.target()) {
			continue
		}
		at[r.chain]++
		if t.copies(r.target()) {
			at[r.chain]++
			lines = append(lines, fmt.Sprintf("-I %s %d %s", r.chain, at[r.chain], r.spec(t)))
		}
	}
	return lines
}

// Stranded says what keeps packets from Services in mode nftables; empty if nothing does. There
// kube-proxy accepts nothing in chains of others.
func Stranded(save string) string {
	for _, t := range parseSave(save) {
		others := func(r rule) bool {
			return r.chain == "FORWARD" && !strings.HasPrefix(r.target(), proxyPrefix) && !ofCopy(r.target())
		}
		if t.name == "filter" && t.policies["FORWARD"] == "DROP" && !slices.ContainsFunc(t.rules, others) {
			return "the host's chain FORWARD drops what no rule accepts, and only kube-proxy's rules accept anything there, which mode nftables does without"
		}
	}
	return ""
}

// Frontends are what rules lead to Services from: addresses, or "node", with protocol and port.
type Frontends map[string]bool

// ofIPTables adds what kube-proxy, or its copy, leads from.
func (all Frontends) ofIPTables(save string, ofTheCopy bool) {
	services, nodePorts := "KUBE-SERVICES", "KUBE-NODEPORTS"
	if ofTheCopy {
		services, nodePorts = copied(services), copied(nodePorts)
	}
	for _, t := range parseSave(save) {
		for _, r := range t.rules {
			address, _, _ := strings.Cut(r.after("-d"), "/")
			protocol, port := r.after("-p"), r.after("--dport")
			switch {
			case t.name != "nat" || port == "":
			case r.chain == services && address != "":
				all.add(address, protocol, port)
			case r.chain == nodePorts:
				all.add("node", protocol, port)
			}
		}
	}
}

// add takes protocols by number as well: programs know no names where there is no /etc/protocols,
// as in kube-proxy's image.
func (all Frontends) add(address, protocol, port string) {
	if name, ok := map[string]string{"6": "tcp", "17": "udp", "132": "sctp"}[protocol]; ok { // RFC 5237
		protocol = name
	}
	all[address+" "+protocol+" "+port] = true
}

// Without are those that others lack, in order.
func (all Frontends) Without(others Frontends) (missing []string) {
	for f := range all {
		if !others[f] {
			missing = append(missing, f)
		}
	}
	slices.Sort(missing)
	return missing
}
