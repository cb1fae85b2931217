package lossguard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// OldAddressClient is who uses an old address, and the node that saw it.
type OldAddressClient struct {
	Node string `json:"node"`

	v1alpha1.OldAddressClient `json:",inline"`
}

// PodOrSource names the client by its pod, or by its address if that is none of a pod.
func (c *OldAddressClient) PodOrSource() string {
	if c.Gone {
		return "pod " + c.Pod + ", which is gone,"
	}
	if c.Pod != "" {
		return "pod " + c.Pod
	}
	return c.Source
}

// Seen says when the client used the address, in words that follow what it is.
func (c *OldAddressClient) Seen() string {
	text := "last seen " + c.LastSeen.UTC().Format(time.RFC3339)
	if c.LongestGap != nil {
		text += ", away for up to " + c.LongestGap.Duration.String()
	}
	return text
}

func (c *OldAddressClient) String() string {
	open := "no connection open"
	if c.Open > 0 {
		open = english.Plural(c.Open, "connection", "") + " open"
	}
	return fmt.Sprintf("%s on node %s at %s (service %s), %s", c.PodOrSource(), c.Node, c.Address, c.Service, open)
}

// Clients of all nodes, the latest first. Clocks of nodes differ. A pod is one client at an
// address, whatever a node knows of it twice.
func Clients(reports []v1alpha1.NodeReport) []OldAddressClient {
	var out []OldAddressClient
	at := map[soakKey]int{}
	for i := range reports {
		for _, c := range reports[i].Status.Clients {
			key := soakKey{reports[i].Name, c.Address, c.Protocol, c.Source, c.Pod}
			if have, twice := at[key]; twice {
				out[have].join(&c)
				continue
			}
			at[key] = len(out)
			out = append(out, OldAddressClient{Node: reports[i].Name, OldAddressClient: c})
		}
	}
	slices.SortStableFunc(out, func(a, b OldAddressClient) int {
		return cmp.Or(b.LastSeen.Compare(a.LastSeen.Time), strings.Compare(a.Node, b.Node), strings.Compare(a.Address, b.Address),
			strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Source, b.Source))
	})
	return out
}

// join takes in what a node knows of the same client beside this.
func (c *OldAddressClient) join(other *v1alpha1.OldAddressClient) {
	if other.LastSeen.After(c.LastSeen.Time) {
		c.LastSeen = other.LastSeen
	}
	if c.FirstSeen == nil || other.FirstSeen != nil && other.FirstSeen.Before(c.FirstSeen) {
		c.FirstSeen = cmp.Or(other.FirstSeen, c.FirstSeen)
	}
	if c.LongestGap == nil || other.LongestGap != nil && other.LongestGap.Duration > c.LongestGap.Duration {
		c.LongestGap = cmp.Or(other.LongestGap, c.LongestGap)
	}
	c.Open, c.Gone = max(c.Open, other.Open), c.Gone && other.Gone
	c.Workload = max(c.Workload, other.Workload)
}

// ListClients lists clients of old addresses; more is how many did not fit in reports.
func ListClients(ctx context.Context, c client.Reader, migration string) (clients []OldAddressClient, more int, err error) {
	list := &v1alpha1.NodeReportList{}
	err = c.List(ctx, list, client.MatchingLabels{v1alpha1.LabelMigration: migration})
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("nodereports: %w", err)
	}
	for i := range list.Items {
		more += list.Items[i].Status.MoreClients + list.Items[i].Status.ForgottenClients
	}
	return Clients(list.Items), more, nil
}

// UsersOf are clients by the address that they use: with a connection open, or seen since a time,
// by the clocks of their nodes.
func UsersOf(ctx context.Context, c client.Reader, migration string, since time.Time) (map[string]OldAddressClient, error) {
	clients, _, err := ListClients(ctx, c, migration)
	if err != nil {
		return nil, err
	}
	users := map[string]OldAddressClient{}
	for _, u := range clients {
		if !u.Gone && (u.Open > 0 || u.LastSeen.After(since)) {
			users[u.Address] = u
		}
	}
	return users, nil
}

// named is how many clients, or nodes, a message names.
const named = 3

// inTheWay names clients, those with open connections first. more are unnamed.
func inTheWay(using []OldAddressClient, more int) string {
	slices.SortFunc(using, func(a, b OldAddressClient) int {
		return cmp.Or(min(b.Open, 1)-min(a.Open, 1), strings.Compare(a.String(), b.String()))
	})
	n := len(using) + more
	verb := "use"
	if n == 1 {
		verb = "uses"
	}
	var words []string
	for i := range using[:min(named, len(using))] {
		words = append(words, using[i].String())
	}
	if rest := n - len(words); rest > 0 {
		words = append(words, fmt.Sprintf("and %d more", rest))
	}
	return fmt.Sprintf("%s still %s old addresses: %s", english.Plural(n, "client", ""), verb, strings.Join(words, "; "))
}

// listed names things, up to three of them.
func listed(what string, names []string) string {
	slices.Sort(names)
	if n := len(names); n > named {
		names = append(slices.Clone(names[:named]), fmt.Sprintf("and %d more", n-named))
	}
	if len(names) > 1 {
		what += "s"
	}
	return what + " " + strings.Join(names, ", ")
}
