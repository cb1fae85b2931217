package servicecidr

import (
	"context"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// oldClients fills in who uses old addresses, or that the user may not read NodeReports.
func (b *StatusBody) oldClients(ctx context.Context, j *Job) error {
	clients, more, err := lossguard.ListClients(ctx, j.Deps.Cluster, j.Spec.Name)
	if apierrors.IsForbidden(err) {
		b.unseen = "who uses old addresses is not known: you may not list nodereports.replumb.dev"
		return nil
	}
	b.Clients, b.MoreClients = clients, more
	return err
}

// clientText names clients of old addresses; the clocks of their nodes say when they were seen.
func (b *StatusBody) clientText() (text []migration.TextBlock) {
	if b.unseen != "" {
		text = append(text, migration.TextBlock{Lines: []string{b.unseen}})
	}
	if len(b.Clients) == 0 {
		return text
	}
	table := migration.TextBlock{
		Head: []string{"OLD ADDRESS", "SERVICE", "CLIENT", "NODE", "LAST SEEN", "OPEN", "AWAY FOR UP TO"},
	}
	for i := range b.Clients {
		c := &b.Clients[i]
		table.Rows = append(table.Rows, []string{
			c.Address + "/" + c.Protocol, c.Service, c.PodOrSource(), c.Node, c.LastSeen.UTC().Format(time.RFC3339), strconv.Itoa(c.Open), awayFor(c),
		})
	}
	if b.MoreClients > 0 {
		table.Lines = []string{
			fmt.Sprintf("and %d more clients of old addresses, which had no room in the reports of their nodes", b.MoreClients),
		}
	}
	return append(text, table)
}

func awayFor(c *lossguard.OldAddressClient) string {
	if c.LongestGap == nil {
		return "-"
	}
	return c.LongestGap.Duration.String()
}

// seen names who has used old addresses since the Services left them, for finish.
func (j *Job) seen(ctx context.Context) ([]string, error) {
	clients, more, err := lossguard.ListClients(ctx, j.Deps.Cluster, j.Spec.Name)
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
