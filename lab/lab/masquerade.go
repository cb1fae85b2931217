package lab

import (
	"context"
	"fmt"
	"strings"
)

// masqueradeRules have what pods send out of their node's network come from the node, as no router there knows where pods are. The
// other networks translate by themselves.
const masqueradeRules = `table ip replumb-lab {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		oifname "eth0" rt ip nexthop %s masquerade
	}
}
`

func (l machines) masquerade(ctx context.Context, m *Member) error {
	on, err := l.Machine(m.Name)
	if err != nil {
		return err
	}
	cmd, err := on.Command(ctx, "nft", "-f", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(masqueradeRules, l.Fabrics().networkOf(m).Gateway()))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft on %s: %w: %s", m.Name, err, out)
	}
	return nil
}
