package migrate

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// oldClients adds who still uses old addresses. Users who may not read NodeReports see the rest.
func (d *servicePage) oldClients(ctx context.Context, j serviceJob) error {
	clients, more, err := lossguard.ListClients(ctx, j.Tools.Cluster, j.Spec.Name)
	if apierrors.IsForbidden(err) {
		d.unseen = "who uses old addresses is not known: you may not list nodereports.replumb.dev"
		return nil
	}
	d.Clients, d.MoreClients = clients, more
	return err
}

// clientTable prints the clients that still use old addresses. LAST SEEN goes by the clocks of
// nodes.
func (d *servicePage) clientTable(w io.Writer, rows int) error {
	if d.unseen != "" {
		fmt.Fprintln(w, d.unseen)
	}
	if len(d.Clients) == 0 {
		return nil
	}
	var all [][]string
	for i := range d.Clients {
		c := &d.Clients[i]
		all = append(all, []string{
			c.Address + "/" + c.Protocol, c.Service, c.Who(), c.Node, c.LastSeen.UTC().Format(time.RFC3339), strconv.Itoa(c.Open), away(c),
		})
	}
	head := []string{"OLD ADDRESS", "SERVICE", "CLIENT", "NODE", "LAST SEEN", "OPEN", "AWAY FOR UP TO"}
	if err := boundedTable(w, rows, head, all, func([]string) bool { return false }); err != nil {
		return err
	}
	if d.MoreClients > 0 {
		fmt.Fprintf(w, "and %d more clients of old addresses, which had no room in the reports of their nodes\n", d.MoreClients)
	}
	return nil
}

// away is the longest time between two uses.
func away(c *lossguard.Client) string {
	if c.LongestGap == nil {
		return "-"
	}
	return c.LongestGap.Duration.String()
}

// seen names who has used old addresses since the Services left them, for finish.
func (j serviceJob) seen(ctx context.Context) ([]string, error) {
	clients, more, err := lossguard.ListClients(ctx, j.Tools.Cluster, j.Spec.Name)
	if apierrors.IsForbidden(err) {
		return []string{"who has used old addresses is not known: you may not list nodereports.replumb.dev"}, nil
	}
	if err != nil {
		return nil, err
	}
	what := "has used an old address"
	if j.LeaveClients {
		what = "will lose an address that it has used"
	}
	var lines []string
	for i := range clients {
		lines = append(lines, fmt.Sprintf("%s: %s, %s", what, clients[i].String(), clients[i].Seen()))
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("%s: %d more, which had no room in the reports of their nodes", what, more))
	}
	return lines, nil
}

// leave has finish not wait for clients of old addresses.
func leave(j job) error {
	services, ok := j.(serviceJob)
	if !ok {
		return &command.UsageError{
			Problem: "--leave-clients is for migrations of Services (spec.serviceCIDR)",
			Hint:    "leave it out: there are no old addresses in use",
		}
	}
	services.LeaveClients = true
	return nil
}
