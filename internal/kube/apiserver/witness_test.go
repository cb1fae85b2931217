package apiserver

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestThrough: what cannot be seen from here is seen from nodes of the control plane, or from all,
// and never from some. The first case is the control: without nodes it is not known.
func TestThrough(t *testing.T) {
	const address = "10.0.0.5:6443"
	want, target := netip.MustParseAddr("172.24.0.1"), netip.MustParsePrefix("172.24.0.0/16")
	saw := func(ranges string, sans ...string) v1alpha1.APIServerReport {
		return v1alpha1.APIServerReport{Address: address, SANs: sans, Ranges: []string{ranges}}
	}
	now, was := saw("172.24.0.0/16", "10.96.0.1", "172.24.0.1"), saw("10.96.0.0/16", "10.96.0.1")
	blind, elsewhere := now, now
	blind.Problem, blind.RangesProblem = "connection refused", "connection refused"
	elsewhere.Address = "10.0.0.6:6443"
	control := func(name string, all ...v1alpha1.APIServerReport) ObservingNode {
		return ObservingNode{Node: name, ControlPlane: true, Saw: all}
	}
	worker := func(name string, all ...v1alpha1.APIServerReport) ObservingNode {
		return ObservingNode{Node: name, Saw: all}
	}
	mute := ObservingNode{Node: "cp1", ControlPlane: true, Silent: "it has not reported", Saw: []v1alpha1.APIServerReport{now}}
	for _, tt := range []struct {
		name      string
		witnesses []ObservingNode
		// from are the nodes that it is seen from, if what is wanted is seen; says is in what is
		// said of its certificate else.
		from, says string
	}{
		{"no node has looked", nil, "", "not known: no route to host"},
		{"a control plane has", []ObservingNode{control("cp1", now)}, "node cp1", ""},
		{"a control plane has, and a worker has not", []ObservingNode{control("cp1", now), worker("w1")}, "node cp1", ""},
		{"a worker lies, and a control plane sees", []ObservingNode{control("cp1", was), worker("w1", now)}, "", "is not in the certificate of " + address},
		{"a worker lies, and a control plane is mute", []ObservingNode{mute, worker("w1", now)}, "", "no route to host; node cp1: it has not reported"},
		{"control planes do not agree", []ObservingNode{control("cp1", now), control("cp2", was)}, "", "is not in the certificate of " + address},
		{"workers agree", []ObservingNode{worker("w2", now), worker("w1", now)}, "node w1, node w2", ""},
		{"many agree", []ObservingNode{worker("w4", now), worker("w3", now), worker("w2", now), worker("w1", now)}, "node w1, node w2, node w3 and 1 more", ""},
		{"workers do not agree", []ObservingNode{worker("w1", now), worker("w2", was)}, "", "is not in the certificate of " + address},
		{"a worker cannot look", []ObservingNode{worker("w1", now), worker("w2", blind)}, "", "no route to host; node w2: connection refused"},
		{"a worker has not looked", []ObservingNode{worker("w1", now), worker("w2")}, "", "node w2: it has not looked at this API server lately"},
		{"at another server", []ObservingNode{control("cp1", elsewhere)}, "", "node cp1: it has not looked at this API server lately"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			unseen := []APIServer{{Address: address, CertErr: errors.New("no route to host"), FlagsErr: errors.New("not asked")}}
			servers := Through(unseen, tt.witnesses)
			err := CertificatesCover(servers, want)
			missing, unknown := AllOnRange(servers, nil, []netip.Prefix{target})
			if tt.from != "" {
				if err != nil || len(missing)+len(unknown) > 0 || servers[0].From != tt.from {
					t.Errorf("from %q: %v, missing %v, unknown %v", servers[0].From, err, missing, unknown)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) || len(missing)+len(unknown) != 1 {
				t.Errorf("got %v, missing %v, unknown %v", err, missing, unknown)
			}
			if unseen[0].CertErr.Error() != "no route to host" {
				t.Errorf("what was given was changed: %v", unseen[0].CertErr)
			}
		})
	}
}

// TestNodesComeLast: what was seen from here, or is on the command line of a pod, is not what nodes
// say it is; nor do they say anything where certificates are not verified.
func TestNodesComeLast(t *testing.T) {
	const address = "10.0.0.5:6443"
	want, target := netip.MustParseAddr("172.24.0.1"), netip.MustParsePrefix("172.24.0.0/16")
	lies := []ObservingNode{{Node: "cp1", ControlPlane: true, Saw: []v1alpha1.APIServerReport{{
		Address: address, SANs: []string{want.String()}, Ranges: []string{target.String()},
	}}}}
	on := []netip.Prefix{target}
	seen := Through(
		[]APIServer{{Address: address, SANs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ranges: prefixes("10.96.0.0/16")}},
		lies,
	)
	if missing, _ := AllOnRange(seen, nil, on); seen[0].From != "" || CertificatesCover(seen, want) == nil || len(missing) != 1 {
		t.Errorf("what was seen from here: %+v", seen)
	}
	pods := map[netip.Addr][]netip.Prefix{netip.MustParseAddr("10.0.0.5"): prefixes("10.96.0.0/16")}
	unseen := []APIServer{{Address: address, CertErr: errors.New("no route to host"), FlagsErr: errors.New("not asked")}}
	if missing, _ := AllOnRange(Through(unseen, lies), pods, on); len(missing) != 1 || missing[0] != address+" (10.96.0.0/16)" {
		t.Errorf("what its pod has: missing %v", missing)
	}
	pods[netip.MustParseAddr("10.0.0.5")] = nil // it is not ready
	if missing, unknown := AllOnRange(Through(unseen, lies), pods, on); len(missing)+len(unknown) > 0 {
		t.Errorf("what its pod does not say: missing %v, unknown %v", missing, unknown)
	}
	unseen[0].CertErr = ErrUnverified
	if got := Through(unseen, lies); !errors.Is(got[0].CertErr, ErrUnverified) || got[0].FlagsErr == nil {
		t.Errorf("where nothing is verified: %+v", got)
	}
}

// TestReport: a report is read back as it was seen, within its bounds.
func TestReport(t *testing.T) {
	now := time.Now()
	many := APIServer{Address: "a:1", Ranges: prefixes("10.96.0.0/16", "172.24.0.0/16", "172.25.0.0/16")}
	for i := range 100 {
		many.SANs = append(many.SANs, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	got := Report([]APIServer{many, {Address: "b:1", CertErr: errors.New(strings.Repeat("x", 1000))}}, now)
	if len(got) != 2 || len(got[0].SANs) != 64 || len(got[0].Ranges) != 2 || len(got[1].Problem) != 256 || !got[0].SeenAt.Time.Equal(now) {
		t.Errorf("got %+v", got)
	}
	if sans, ranges := parsed(got[0]); !slices.Equal(sans, many.SANs[:64]) || !slices.Equal(ranges, many.Ranges[:2]) {
		t.Errorf("read back: %v, %v", sans, ranges)
	}
	if n := len(Report(slices.Repeat([]APIServer{many}, 100), now)); n != 32 {
		t.Errorf("%d servers are reported", n)
	}
}
