//go:build long

package kill

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/etcdtest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

// apiPort is where the API servers of machines listen.
const apiPort = 6443

// Where machines are, by the last byte of their address: those of the old network, of the new one, and of neither.
const (
	inOld, inNew, elsewhere = 10, 74, 138
	networkBits             = 26
)

// site is a cluster whose control planes are machines that are played, with members of etcd that are not. A machine has an address of
// 127.0.0.0/8, where its members listen and a way leads to the one API server.
type site struct {
	*testing.T
	target
	api    *apitest.Server
	fleet  *fakekubelet.Fleet
	dir    string
	subnet net.IP
	// owner is the URL that actions call.
	owner string
	// main and events are both etcds. If main is external it has machines of its own, and there is no other.
	main, events *store
	external     bool
	// replaces says that machines come back with their data; else others join first.
	replaces bool
	// heard is told of each action, before and after it.
	heard func(moment string)

	mu       sync.Mutex
	machines map[string]*machine
	wrong    []string
	work     sync.WaitGroup
}

// machine of a control plane.
type machine struct {
	name   string
	number int
	at     net.IP
	// gate is where its API server is reached; nil, if it has ended.
	gate    net.Listener
	members map[*store]*etcdtest.Member
	runs    bool
}

// newSite starts three control planes in the old network, and keys are written to both etcds from now on.
func newSite(t *testing.T, external, replaces bool) *site {
	t.Helper()
	s := &site{
		T: t, dir: t.TempDir(), subnet: etcdtest.Subnet(t.Name()), external: external, replaces: replaces,
		machines: map[string]*machine{}, heard: func(string) {},
	}
	var err error
	s.api, err = apitest.Run("10.96.0.0/16", apitest.WithoutEndpoints())
	must(t, err)
	t.Cleanup(func() {
		if err := s.api.Stop(); err != nil { // it was killed: on a busy machine it does not end in time
			t.Log(err)
		}
	})
	target("").eventually(t, func() error { return s.api.InstallCRD(t.Context()) })
	s.fleet = &fakekubelet.Fleet{Client: s.api}
	s.serveFront()
	owner := httptest.NewServer(http.HandlerFunc(s.serve))
	s.owner = owner.URL
	t.Cleanup(func() { owner.Close(); s.work.Wait() })
	s.main = newStore(t, "etcd", "2380", "2379")
	if !external {
		s.events = newStore(t, "events etcd", "2382", "2381")
	}
	t.Cleanup(s.off)
	for name, place := range map[string]int{"old1": inOld, "new1": inNew} {
		must(t, s.fleet.Node(t.Context(), name, netip.MustParseAddr(s.address(place).String())))
	}
	first := map[*store][]*etcdtest.Member{}
	var everywhere []net.IP
	for i := range voters {
		m := s.machine(fmt.Sprintf("cp%d", i+1), inOld)
		s.node(m)
		s.open(m)
		for st, member := range m.members {
			first[st] = append(first[st], member)
		}
		for _, st := range s.elsewhere() {
			member := st.place(t, fmt.Sprintf("etcd%d", i+1), s.address(elsewhere+i+1))
			first[st] = append(first[st], member)
			t.Cleanup(member.Kill)
		}
		everywhere = append(everywhere, s.address(inOld+i+1), s.address(inNew+i+1), s.address(elsewhere+i+1))
	}
	for _, st := range s.stores() {
		st.begin(t, first[st], everywhere)
	}
	return s
}

func (s *site) stores() []*store { return append(s.moving(), s.elsewhere()...) }

// moving are the etcds whose members are on control planes, elsewhere is the one that has machines of its own.
func (s *site) moving() []*store {
	if s.external {
		return nil
	}
	return []*store{s.main, s.events}
}

func (s *site) elsewhere() []*store {
	if s.external {
		return []*store{s.main}
	}
	return nil
}

func (s *site) address(place int) net.IP {
	return net.IPv4(s.subnet[0], s.subnet[1], s.subnet[2], byte(place)).To4()
}

func (s *site) network(place int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(s.address(place))), networkBits).Masked()
}

// machine is one of a network with members that have not started. Its number is the last character of its name.
func (s *site) machine(name string, network int) *machine {
	number, err := strconv.Atoi(name[len(name)-1:])
	must(s, err)
	m := &machine{name: name, number: number, at: s.address(network + number), members: map[*store]*etcdtest.Member{}, runs: true}
	for _, st := range s.moving() {
		m.members[st] = st.place(s, name, m.at)
	}
	s.machines[name] = m
	return m
}

// off ends all that machines run.
func (s *site) off() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.machines {
		s.shut(m)
		for _, member := range m.members {
			member.Kill()
			if s.Failed() {
				s.Logf("%s:\n%s", m.name, member.Tail())
			}
		}
	}
}

func (s *site) node(m *machine) {
	must(s, s.fleet.Node(s.Context(), m.name, netip.MustParseAddr(m.at.String())))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	patch := []byte(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)
	must(s, s.api.Patch(s.Context(), n, client.RawPatch("application/merge-patch+json", patch)))
}

// note writes the Migration.
func (s *site) note() string {
	mode := "AddFirst"
	if s.replaces {
		mode = "Replace"
	}
	text := fmt.Sprintf(`
  proof: {agents: Disabled}
  nodes:
    old: {cidrs: [%s]}
    new: {cidrs: [%s]}
    gateWait: 2m
    canary: {mode: Disabled}
    ingress: {settle: 0s}
    terminate: {when: AtFinish, action: {exec: {command: ["true"]}}}
    controlPlane:
      mode: %s
      settle: 0s
      etcd: %s
`, s.network(inOld), s.network(inNew), mode, s.reach(s.main, s.external))
	if s.events != nil {
		text += fmt.Sprintf("      etcdEvents: %s\n", s.reach(s.events, false))
	}
	for _, action := range []string{"provision", "retire", "terminate"} {
		text += fmt.Sprintf("      %s: {http: {url: %s}, timeout: 1m}\n", action, s.owner)
	}
	return noted(s, s.dir, "%s", text)
}

// reach is how commands reach an etcd.
func (s *site) reach(st *store, external bool) string {
	type spec struct {
		External            bool     `json:"external,omitempty"`
		Endpoints           []string `json:"endpoints"`
		CAFile              string   `json:"caFile"`
		CertFile            string   `json:"certFile"`
		KeyFile             string   `json:"keyFile"`
		SnapshotFile        string   `json:"snapshotFile,omitempty"`
		SnapshotUnencrypted bool     `json:"snapshotUnencrypted,omitempty"`
	}
	keys := st.ca.Clients
	e := spec{External: external, CAFile: keys.CA, CertFile: keys.Cert, KeyFile: keys.Key}
	place := elsewhere
	if !external {
		place = inOld
		e.SnapshotFile, e.SnapshotUnencrypted = filepath.Join(st.dir, "snapshot.db"), true
	}
	for i := range voters {
		e.Endpoints = append(e.Endpoints, "https://"+net.JoinHostPort(s.address(place+i+1).String(), st.clientPort))
	}
	text, err := json.Marshal(e)
	must(s, err)
	return string(text)
}

// unfinished is what is not as it has to be in the end: members and API servers in the new network, as many as there were, and nothing else.
func (s *site) unfinished() (out []string) {
	name := "new-cp%d"
	if s.replaces {
		name = "cp%d"
	}
	for _, st := range s.moving() {
		var want []string
		for i := range voters {
			peer := "https://" + net.JoinHostPort(s.address(inNew+i+1).String(), st.peerPort)
			want = append(want, fmt.Sprintf("%s %v learner=false", fmt.Sprintf(name, i+1), []string{peer}))
		}
		all, err := st.members(s.Context())
		if got := shape(all); err != nil || got != strings.Join(want, "\n") {
			out = append(out, fmt.Sprintf("%s has the members\n%s\n(%v)", st.name, got, err))
		}
	}
	endpoints := &discoveryv1.EndpointSliceList{}
	must(s, s.api.List(s.Context(), endpoints, client.InNamespace(metav1.NamespaceDefault)))
	served := 0
	for i := range endpoints.Items {
		for _, e := range endpoints.Items[i].Endpoints {
			a, err := netip.ParseAddr(strings.Replace(e.Addresses[0], "101.", "127.", 1))
			switch {
			case err != nil || s.network(inOld).Contains(a):
				out = append(out, fmt.Sprintf("an API server is at %s", a))
			case s.network(inNew).Contains(a):
				served++
			}
		}
	}
	if served != voters {
		out = append(out, fmt.Sprintf("%d API servers are in the new network", served))
	}
	return out
}

// complain notes what must not happen.
func (s *site) complain(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// complaints are all that must not have happened.
func (s *site) complaints() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.wrong)
	for _, st := range s.stores() {
		out = append(out, st.complaints()...)
	}
	return out
}

// requireEverything fails the test unless all members of both etcds have all keys that were acknowledged.
func (s *site) requireEverything() {
	s.Helper()
	for _, st := range s.stores() {
		st.rest()
		all, err := st.members(s.Context())
		must(s, err)
		for _, m := range all {
			if lost, err := st.lost(s, m); lost > 0 || err != nil {
				s.Errorf("%s: %s lacks %d of the keys that were acknowledged: %v", st.name, m.Name, lost, err)
			}
		}
		s.Logf("%s: %d writes were acknowledged, %d were not", st.name, len(st.acknowledged), len(st.refused))
		if len(st.acknowledged) < 100 {
			s.Errorf("%s: only %d writes were acknowledged, which prove little", st.name, len(st.acknowledged))
		}
	}
}

// later runs something of the provider's while others call it.
func (s *site) later(d time.Duration, what func()) {
	s.work.Go(func() {
		pass(context.Background(), d)
		s.mu.Lock()
		defer s.mu.Unlock()
		what()
	})
}
