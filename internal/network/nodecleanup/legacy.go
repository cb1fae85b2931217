package nodecleanup

import (
	"bufio"
	"slices"
	"strings"
)

// legacyFinds reads what iptables-legacy-save prints. It returns what in it is of the network, and what iptables-legacy-restore
// --noflush has to be instructed to remove that and nothing else; nothing, if there is nothing.
func legacyFinds(n Network, save string) (found []string, restore string) {
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
			if name, _, _ := strings.Cut(line[1:], " "); hasPrefix(n.Chains, name) {
				chains = append(chains, name)
				found = append(found, "chain "+table+" "+name+" (legacy)")
			}
		case strings.HasPrefix(line, "-A "):
			chain, rest, _ := strings.Cut(line[3:], " ")
			if !hasPrefix(n.Chains, chain) && n.ownRule(rest) {
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

// ownRule reports whether a rule, as iptables-save writes it, leads to a chain of the network or has a comment of its own.
func (n Network) ownRule(rule string) bool {
	for _, mark := range []string{"-j ", "-g "} {
		for part := range strings.SplitSeq(" "+rule, " "+mark) {
			if part != " "+rule && hasPrefix(n.Chains, part) {
				return true
			}
		}
	}
	_, text, ok := strings.Cut(" "+rule, " --comment ")
	return ok && hasPrefix(n.Comments, strings.ReplaceAll(strings.TrimPrefix(text, `"`), `\"`, `"`))
}
