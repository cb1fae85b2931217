package proxyrules

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/network/ipvs"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// Between iptables and ipvs nothing is copied. Neither mode removes what the other has when it
// starts (platformCleanup in cmd/kube-proxy/app/server_linux.go of k8s.io/kubernetes): what differs
// stands side by side, and the chains of one name in both are exchanged in one transaction. Rules
// lead where they stand, being first in every hook, and virtual servers where they do not.

// betweenLooks is how long the connections of a node are left alone.
const betweenLooks = 2 * time.Second

// clusterIPs are the ipsets of ClusterIPs, which only mode ipvs names in its chain of Services.
func clusterIPs() []string { return []string{"KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP"} }

// ofIPVS reports whether kube-proxy in mode ipvs was the last to write the chain of Services.
func ofIPVS(save string) bool {
	return slices.ContainsFunc(parseSave(save), func(t *saved) bool {
		return t.name == "nat" && slices.ContainsFunc(t.rules, func(r rule) bool {
			return r.chain == "KUBE-SERVICES" && slices.ContainsFunc(clusterIPs(), func(set string) bool { return slices.Contains(r.words, set) })
		})
	})
}

// ofServers adds what virtual servers lead from, and those without servers if these are meant: mode
// ipvs has those of Services without endpoints, too. They count where others lead: kube-proxy has
// begun then to keep them up.
func (all Frontends) ofServers(servers []ipvs.VirtualServer, emptyOnes bool) {
	emptyOnes = emptyOnes && slices.ContainsFunc(servers, ipvs.VirtualServer.Leads)
	for _, s := range servers {
		if !s.Leads() && (len(s.Servers) > 0 || !emptyOnes) {
			continue
		}
		address, port := s.At.Addr().String(), fmt.Sprint(s.At.Port())
		if s.NodePort {
			address = "node"
		}
		all.add(address, s.Protocol, port)
	}
}

// ofRefused adds what kube-proxy in mode iptables refuses: Services without endpoints.
func (all Frontends) ofRefused(save string) {
	for _, t := range parseSave(save) {
		for _, r := range t.rules {
			port := r.after("--dport", "--dports")
			if t.name != "filter" || port == "" || r.chain != "KUBE-SERVICES" && r.chain != "KUBE-EXTERNAL-SERVICES" {
				continue
			}
			address, _, _ := strings.Cut(r.after("-d"), "/")
			if address == "" {
				address = "node"
			}
			all.add(address, r.after("-p"), port)
		}
	}
}

// Against is what the rules of a mode are compared with.
type Against string

const (
	// TheCopy is of the rules of the mode before.
	TheCopy Against = ""
	// BesideIPVS is what the other one of iptables and ipvs has.
	BesideIPVS Against = "ipvs"
	// ByTurns is the same while kube-proxies of both modes run. The one may write the chain of
	// Services whenever the other one has, so that it has written everything once is enough.
	ByTurns Against = "by-turns"
)

// wroteIPTables reports whether kube-proxy in mode iptables has written its rules, of which one
// chain is by now mode ipvs': it writes all in one transaction at first.
func wroteIPTables(save string) bool {
	return ofIPVS(save) && slices.ContainsFunc(parseSave(save), func(t *saved) bool {
		return t.name == "nat" && slices.ContainsFunc(t.rules, func(r rule) bool { return strings.HasPrefix(r.chain, "KUBE-SVC-") })
	})
}

// besideIPVS are the frontends that IPVS leads from where a node goes from mode ipvs to iptables,
// and those that rules lead from or refuse; or the other way about.
func (p Programs) besideIPVS(ctx context.Context, mode string, by Against) (led, have Frontends, err error) {
	servers, err := ipvs.Servers()
	if err != nil {
		return nil, nil, err
	}
	led, have = Frontends{}, Frontends{}
	written := mode == IPVS && slices.ContainsFunc(servers, ipvs.VirtualServer.Leads)
	if mode == IPTables {
		led.ofServers(servers, false)
	}
	for _, f := range families() {
		save, err := p.run(ctx, "", f.iptables+"-save", "-t", "nat")
		if err != nil {
			return nil, nil, err
		}
		if mode == IPTables {
			filter, err := p.run(ctx, "", f.iptables+"-save", "-t", "filter")
			if err != nil {
				return nil, nil, err
			}
			have.ofIPTables(save, false)
			have.ofRefused(filter)
			written = written || wroteIPTables(save)
			continue
		}
		led.ofIPTables(save, false)
		if ofIPVS(save) {
			have.ofServers(slices.DeleteFunc(slices.Clone(servers), func(s ipvs.VirtualServer) bool {
				return s.At.Addr().Is4() != (f.nft == "ip")
			}), true)
		}
	}
	if by == ByTurns && written {
		maps.Copy(have, led)
	}
	return led, have, nil
}

// serverCount begins what a report of LeaveIPVS says of how many virtual servers there are.
const serverCount = "virtual servers: "

// LeaveIPVS has nothing new use what mode ipvs has beside its virtual servers, and returns when
// nothing does, or the time is over. The problems of the report are what is open still.
func LeaveIPVS(ctx context.Context, h nodecleanup.Host, limit time.Duration) (*nodecleanup.TracesReport, error) {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(betweenLooks)
	defer tick.Stop()
	for {
		r, err := h.LeaveIPVS()
		if err != nil {
			return nil, err
		}
		if len(r.Problems) == 0 || within.Err() != nil {
			return counted(ctx, r)
		}
		select {
		case <-within.Done():
		case <-tick.C:
		}
	}
}

// counted adds what kube-proxy says of itself, and how many virtual servers it has.
func counted(ctx context.Context, r *nodecleanup.TracesReport) (*nodecleanup.TracesReport, error) {
	all, err := ipvs.Servers()
	r.Found = append(says(ctx), fmt.Sprint(serverCount, len(all)))
	return r, err
}

// ServersLead is how many virtual servers of kube-proxy a node has, by a report of LeaveIPVS.
func ServersLead(r *nodecleanup.TracesReport) string {
	for _, f := range r.Found {
		if n, ok := strings.CutPrefix(f, serverCount); ok {
			return n
		}
	}
	return "0"
}
