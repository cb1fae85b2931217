package nodes

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/network/dnsrecords/provider"
)

// recordMoves are the records of a list on their way.
func (l live) recordMoves(ctx context.Context, all []v1alpha1.RecordSpec) ([]*dnsrecords.Move, error) {
	memory := migration.RecordMemory{Client: l.Cluster, Name: l.spec.Name}
	out, err := provider.Moves(ctx, all, &dnsrecords.Client{}, migration.Secrets(l.Cluster), memory)
	for _, m := range out {
		m.Patience, m.Now = l.spec.GateWait, l.Now
	}
	return out, err
}

// apiPorts are those at which the API is reached: where its servers listen, and where replumb reaches it itself.
func (l live) apiPorts(ctx context.Context) ([]uint16, error) {
	all, err := l.apiServers(ctx)
	if err != nil {
		return nil, err
	}
	ports := portsOf(all)
	if host, _, err := rest.DefaultServerUrlFor(l.Cluster.RESTConfig()); err == nil {
		if n, err := strconv.ParseUint(host.Port(), 10, 16); err == nil && !slices.Contains(ports, uint16(n)) {
			ports = append(ports, uint16(n))
		}
	}
	return ports, nil
}

// apiAnswers fails as long as one of the values of a record, an address or a load balancer, does not answer as the API does, with a
// certificate for the record's name: a record that changes its type has both ends in use until no one remembers the former.
func (l live) apiAnswers(name string) func(context.Context, []string) error {
	return func(ctx context.Context, values []string) error {
		ports, err := l.apiPorts(ctx)
		if err != nil {
			return err
		}
		for _, v := range values {
			if err := answersAt(ctx, apiserver.New(l.Cluster.RESTConfig()),
				strings.TrimSuffix(dnsrecords.Host(v), "."), ports,
				strings.TrimSuffix(name, ".")); err != nil {
				return fmt.Errorf("before %s changes: %w", name, err)
			}
		}
		return nil
	}
}

// answersAt is content with one port. Of several errors it returns one that waiting does not change, if there is one.
func answersAt(ctx context.Context, servers *apiserver.Inspector, host string, ports []uint16, name string) error {
	var worst error
	for _, port := range ports {
		err := servers.Answers(ctx, net.JoinHostPort(host, strconv.Itoa(int(port))), name)
		if err == nil {
			return nil
		}
		if worst == nil || !engine.Retryable(err) {
			worst = err
		}
	}
	return worst
}

// pointToNew takes records over to the values of the new network: all of them at once, each by way of both.
func pointToNew(all []*dnsrecords.Move) []engine.Group {
	return slices.Concat(
		dnsrecords.Together("time to live", parallel, all, (*dnsrecords.Move).Lower),
		dnsrecords.Together("both", parallel, all, (*dnsrecords.Move).Widen),
		dnsrecords.Together("new", parallel, all, (*dnsrecords.Move).Narrow),
	)
}

func (p *Planner) moveRecords() []engine.Group { return pointToNew(p.Records) }

// endRecords leads names of the API to what they have at last: by then no control plane is left that the old load balancers know.
func (p *Planner) endRecords() []engine.Group {
	if p.blind() {
		return nil
	}
	return dnsrecords.Together("last", parallel, p.APIRecords, (*dnsrecords.Move).End)
}

// returning are the records that a rollback gives the values that they had, and those that stay where they are: what the former lead
// to is still there. Names of the API lead to control planes, whatever has become of workers.
func (p *Planner) returning() (back, stay []*dnsrecords.Move) {
	back, stay = nil, p.Records
	if p.Whole() {
		back, stay = p.Records, nil
	}
	if p.controlPlaneWhole() {
		return slices.Concat(back, p.APIRecords), stay
	}
	return back, slices.Concat(stay, p.APIRecords)
}

// moveRecordsBack gives records the values that they had, and their time to live.
func (p *Planner) moveRecordsBack() []engine.Group {
	back, _ := p.returning()
	return dnsrecords.Together("back", parallel, back, (*dnsrecords.Move).Back)
}

// leaveRecords gives those that do not go back their time to live.
func (p *Planner) leaveRecords() []engine.Group {
	_, stay := p.returning()
	return dnsrecords.Together("time to live", parallel, stay, (*dnsrecords.Move).Leave)
}

// restoreTTL gives records, which have arrived, their time to live back.
func (p *Planner) restoreTTL() []engine.Group {
	return dnsrecords.Together("time to live", parallel, slices.Concat(p.Records, p.APIRecords), (*dnsrecords.Move).Restore)
}
