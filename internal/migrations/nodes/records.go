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

// recordLoader reads the DNS records that a migration moves.
type recordLoader struct{ live }

func (l recordLoader) recordMoves(ctx context.Context, all []v1alpha1.RecordSpec) ([]*dnsrecords.RecordMove, error) {
	memory := migration.RecordMemory{Client: l.Cluster, Name: l.spec.Name}
	out, err := provider.Moves(ctx, all, &dnsrecords.Client{}, migration.Secrets(l.Cluster), memory)
	for _, m := range out {
		m.Patience, m.Now = l.spec.GateWait, l.Now
	}
	return out, err
}

// apiPorts are those of API servers, and of replumb's own connection.
func (l recordLoader) apiPorts(ctx context.Context) ([]uint16, error) {
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

// apiAnswers fails as long as a value of a record does not answer as the API, with a certificate
// for the record's name.
func (l recordLoader) apiAnswers(name string) func(context.Context, []string) error {
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

// answersAt succeeds with one port. It prefers errors that waiting does not change.
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

// pointToNew moves all records to the values of the new network, each by way of both.
func pointToNew(all []*dnsrecords.RecordMove) []engine.Group {
	return slices.Concat(
		dnsrecords.Together("time to live", parallel, all, (*dnsrecords.RecordMove).Lower),
		dnsrecords.Together("both", parallel, all, (*dnsrecords.RecordMove).Widen),
		dnsrecords.Together("new", parallel, all, (*dnsrecords.RecordMove).Narrow),
	)
}

func moveRecords(p *Planner) []engine.Group { return pointToNew(p.Records) }

// endRecords moves names of the API to their last values, once the control plane has moved.
func endRecords(p *Planner) []engine.Group {
	if p.blind() {
		return nil
	}
	return dnsrecords.Together("last", parallel, p.APIRecords, (*dnsrecords.RecordMove).End)
}

// returning are the records that a rollback moves back, and those that stay: names of the API
// follow control planes.
func returning(p *Planner) (back, stay []*dnsrecords.RecordMove) {
	back, stay = nil, p.Records
	if p.Whole() {
		back, stay = p.Records, nil
	}
	if p.controlPlaneWhole() {
		return slices.Concat(back, p.APIRecords), stay
	}
	return back, slices.Concat(stay, p.APIRecords)
}

func moveRecordsBack(p *Planner) []engine.Group {
	back, _ := returning(p)
	return dnsrecords.Together("back", parallel, back, (*dnsrecords.RecordMove).Back)
}

func leaveRecords(p *Planner) []engine.Group {
	_, stay := returning(p)
	return dnsrecords.Together("time to live", parallel, stay, (*dnsrecords.RecordMove).Leave)
}

// restoreTTL gives records, which have arrived, their time to live back.
func restoreTTL(p *Planner) []engine.Group {
	return dnsrecords.Together("time to live", parallel, slices.Concat(p.Records, p.APIRecords), (*dnsrecords.RecordMove).Restore)
}
