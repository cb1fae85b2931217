package lab

import (
	"context"
	"fmt"
	"strings"
)

// masqueradeRules have what pods send out of their node's network come from the node, as no router there knows where pods are. The
// other networks translate by themselves.
const masqueradeRules = `table %[1]s replumb-lab {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		oifname "eth0" rt %[1]s nexthop %[2]s masquerade
	}
}
`

// tableOf is what nft calls a family.
func tableOf(f Family) string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}

func (l machines) masquerade(ctx context.Context, m *Member) error {
	on, err := l.Machine(m.Name)
	if err != nil {
		return err
	}
	cmd, err := on.Command(ctx, "nft", "-f", "-")
	if err != nil {
		return err
	}
	var rules strings.Builder
	for _, gateway := range l.Fabrics().networkOf(m).gateways() {
		_, _ = fmt.Fprintf(&rules, masqueradeRules, tableOf(FamilyOf(gateway)), gateway)
	}
	cmd.Stdin = strings.NewReader(rules.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft on %s: %w: %s", m.Name, err, out)
	}
	return nil
}
