//go:build long

package kill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/testing/etcdtest"
)

// lag is how long after its answer a machine is stopped that was told to: until then its members are who they were.
const lag = time.Second

// provisioned is what an owner answers who has made a control plane.
type provisioned struct {
	v1alpha1.MemberStatus
	Events *v1alpha1.MemberStatus `json:"events,omitempty"`
}

// serve does what replumb asks the owner of the machines for. A call whose caller was killed is carried out to its end, and the next one
// waits for that.
func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	var request nodes.Request
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	called := request.Action + " " + request.Node.Name
	s.heard("before " + called)
	s.mu.Lock()
	answer, err := s.act(&request)
	s.mu.Unlock()
	s.heard("after " + called)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case answer != nil:
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// act may be asked for the same again.
func (s *site) act(r *nodes.Request) (any, error) {
	name := r.Node.Name
	s.Logf("%s: %s %s", time.Now().Format(time.TimeOnly), r.Action, name)
	m := s.machines[name]
	switch {
	case r.Action == "provision" && s.replaces:
		return s.comeBack(m)
	case r.Action == "provision":
		return s.join(name)
	case m == nil:
		return nil, nil // it has ended
	case r.Action == "retire":
		s.shut(m)
		return nil, nil
	case r.Action == "terminate" && s.replaces:
		at := m.at
		s.later(lag, func() {
			if m.at.Equal(at) { // else it has been stopped and is another by now
				s.stopMachine(m)
			}
		})
		return nil, nil
	case r.Action == "terminate":
		return nil, s.end(m)
	}
	return nil, errors.New("that is not done here")
}

// join makes the control plane that takes over from one. Its members start as soon as the others know them. If it has none there is nothing
// to answer.
func (s *site) join(replaces string) (any, error) {
	name := "new-" + replaces
	m := s.machines[name]
	if m == nil {
		m = s.machine(name, inNew)
		s.node(m)
		s.open(m)
		for st, member := range m.members {
			s.work.Go(func() { s.startKnown(st, member) })
		}
	}
	if s.external {
		return nil, nil
	}
	return answerOf(s.main, s.events, m), nil
}

func answerOf(main, events *store, m *machine) provisioned {
	return provisioned{
		MemberStatus: v1alpha1.MemberStatus{Name: m.name, PeerURL: m.members[main].Peer},
		Events:       &v1alpha1.MemberStatus{Name: m.name, PeerURL: m.members[events].Peer},
	}
}

// startKnown starts a member with those who know it, once they do.
func (s *site) startKnown(st *store, m *etcdtest.Member) {
	for s.Context().Err() == nil {
		initial, err := s.known(st, m)
		if err != nil {
			pass(s.Context(), 100*time.Millisecond)
			continue
		}
		m.InitialCluster = initial
		if err := st.start(m, "--initial-cluster-state=existing"); err != nil {
			s.Error(err)
		}
		return
	}
}

// known is the members that know one, with their peer URLs.
func (s *site) known(st *store, m *etcdtest.Member) (initial string, err error) {
	all, err := st.members(s.Context())
	if err != nil {
		return "", err
	}
	knows := func(other *etcdserverpb.Member) bool { return slices.Contains(other.PeerURLs, m.Peer) }
	if !slices.ContainsFunc(all, knows) {
		return "", errors.New("it is not known yet")
	}
	var parts []*etcdtest.Member
	for _, other := range all {
		part := &etcdtest.Member{Name: other.Name, Peer: other.PeerURLs[0]}
		if knows(other) {
			part.Name = m.Name
		}
		parts = append(parts, part)
	}
	return etcdtest.InitialCluster(parts...), nil
}

// end ends a machine for good. Its members must not be any more.
func (s *site) end(m *machine) error {
	for st, member := range m.members {
		all, err := st.members(s.Context())
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(other *etcdserverpb.Member) bool { return slices.Contains(other.PeerURLs, member.Peer) }) {
			s.complain("%s: %s is still a member, and its machine was to end", st.name, m.name)
		}
		member.Kill()
	}
	s.shut(m)
	delete(s.machines, m.name)
	return nil
}

// stopMachine cuts a machine's power. The others have to bear that.
func (s *site) stopMachine(m *machine) {
	if !m.runs {
		return
	}
	for st, member := range m.members {
		if err := st.bearsStopOf(s, m.name); err != nil {
			s.complain("stopping %s: %v", m.name, err)
		}
		member.Kill()
	}
	s.shut(m)
	m.runs = false
}

// comeBack has a machine that was stopped run in the new network, with its data. Its members start at once.
func (s *site) comeBack(m *machine) (any, error) {
	to := s.address(inNew + m.number)
	switch {
	case m.runs && !m.at.Equal(to):
		s.complain("%s was to come back before it had stopped", m.name)
		return nil, fmt.Errorf("%s still runs", m.name)
	case !m.runs:
		m.at, m.runs = to, true
		for st := range m.members {
			m.members[st] = st.place(s, m.name, to)
			if err := st.start(m.members[st]); err != nil {
				return nil, err
			}
		}
		s.open(m)
		if err := s.readdress(m); err != nil {
			return nil, err
		}
	}
	return answerOf(s.main, s.events, m), nil
}

// readdress has the Node of a machine be where the machine is, as its kubelet would.
func (s *site) readdress(m *machine) error {
	n := &corev1.Node{}
	if err := s.api.Get(context.Background(), types.NamespacedName{Name: m.name}, n); err != nil {
		return err
	}
	was := n.DeepCopy()
	n.Status.Addresses = []corev1.NodeAddress{{
		Type: corev1.NodeInternalIP, Address: netip.AddrFrom4([4]byte(m.at)).String(),
	}}
	return s.api.Status().Patch(context.Background(), n, client.MergeFrom(was))
}
