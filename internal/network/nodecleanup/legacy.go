package nodecleanup

import (
	"bufio"
	"slices"
	"strings"
)

// legacyFinds reads iptables-legacy-save. It returns what is the network's, and the input of
// iptables-legacy-restore --noflush that removes it; nothing for nothing.
func legacyFinds(n NetworkTraces, save string) (found []string, restore string) {
	var out strings.Builder
	var rules, chains []string
	table := ""
	lines := bufio.NewScanner(strings.NewReader(save))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			table, rules, chains = line[1:], nil, nil
		case strings.HasPrefix(line, ":"):
			if name, _, _ := strings.Cut(line[1:], " "); n.ownChain(table, name) {
				chains = append(chains, name)
				found = append(found, "chain "+table+" "+name+" (legacy)")
			}
		case strings.HasPrefix(line, "-A "):
			chain, rest, _ := strings.Cut(line[3:], " ")
			if !n.ownChain(table, chain) && n.ownRule(table, rest) {
				rules = append(rules, "-D "+line[3:])
				found = append(found, "rule in chain "+table+" "+chain+" (legacy)")
				if to := n.ledTo(rest); to != "" && !slices.Contains(chains, to) {
					chains = append(chains, to)
					found = append(found, "chain "+table+" "+to+" (legacy)")
				}
			}
		case line == "COMMIT" && len(rules)+len(chains) > 0:
			write(&out, table, rules, chains)
		}
	}
	return found, out.String()
}

func write(out *strings.Builder, table string, rules, chains []string) {
	out.WriteString("*" + table + "\n")
	for _, r := range rules {
		out.WriteString(r + "\n")
	}
	for _, flag := range []string{"-F ", "-X "} {
		for _, c := range chains {
			out.WriteString(flag + c + "\n")
		}
	}
	out.WriteString("COMMIT\n")
}

// ownRule reports whether a rule leads to a chain of the network, has its comment, or has none and
// accepts one of its interfaces.
func (n NetworkTraces) ownRule(table, rule string) bool {
	rule = " " + rule
	for _, mark := range []string{" -j ", " -g "} {
		for part := range strings.SplitSeq(rule, mark) {
			if name, _, _ := strings.Cut(part, " "); part != rule && n.ownChain(table, name) {
				return true
			}
		}
	}
	_, text, commented := strings.Cut(" "+rule, " --comment ")
	if commented {
		return hasPrefix(n.Comments, strings.ReplaceAll(strings.TrimPrefix(text, `"`), `\"`, `"`))
	}
	return slices.ContainsFunc(n.Crossed, func(link string) bool {
		return strings.Contains(rule+" ", " -i "+link+" ") || strings.Contains(rule+" ", " -o "+link+" ")
	})
}
