//go:build long

package kill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/replumb/replumb/internal/testing/etcdtest"
)

const (
	// voters are how many members an etcd has, before and after.
	voters = 3
	// answerWithin is how long a member may take to answer, on a machine that others are busy on.
	answerWithin = 10 * time.Second
	// written is what keys that are written all along begin with.
	written = "written/"
)

// store is an etcd of real members: the first one, or the one for events.
type store struct {
	name                 string
	dir                  string
	peerPort, clientPort string
	ca                   *etcdtest.Authority
	// client asks whichever member answers, of all that there ever are.
	client *clientv3.Client
	work   sync.WaitGroup
	stop   context.CancelFunc

	mu      sync.Mutex
	volumes map[string]*volume
	// acknowledged are the keys whose write was, refused those whose was not.
	acknowledged map[string]bool
	refused      map[string]error
	// fewest is how many voters there were when they were fewest.
	fewest int
}

// volume is the data of a member, which stays when its machine goes.
type volume struct {
	dir string
	// writers are processes that have it, most is how many there were at once.
	writers, most int
}

func newStore(t *testing.T, name, peerPort, clientPort string) *store {
	t.Helper()
	s := &store{
		name: name, dir: t.TempDir(), peerPort: peerPort, clientPort: clientPort, volumes: map[string]*volume{},
		acknowledged: map[string]bool{}, refused: map[string]error{}, fewest: voters,
	}
	var err error
	s.ca, err = etcdtest.NewAuthority(s.dir)
	must(t, err)
	return s
}

// place gives a member an address, without starting it. One of that name that was elsewhere has its data here.
func (s *store) place(t testing.TB, name string, at net.IP) *etcdtest.Member {
	t.Helper()
	cert, err := s.ca.Issue(fmt.Sprintf("%s-%s", name, at), at)
	must(t, err)
	return &etcdtest.Member{
		Name: name, Dir: s.volume(name).dir, Cert: cert,
		Peer: "https://" + net.JoinHostPort(at.String(), s.peerPort), Client: "https://" + net.JoinHostPort(at.String(), s.clientPort),
	}
}

func (s *store) volume(name string) *volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[name]
	if v == nil {
		v = &volume{dir: filepath.Join(s.dir, name)}
		s.volumes[name] = v
	}
	return v
}

// start runs a member, and counts it among the writers of its volume until its process has ended.
func (s *store) start(m *etcdtest.Member, flags ...string) error {
	v := s.volume(m.Name)
	// On a machine that others are busy on heartbeats are late, which is no reason for an election.
	if err := m.Start(append(flags, "--heartbeat-interval=300", "--election-timeout=3000")...); err != nil {
		return err
	}
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		v.writers += n
		v.most = max(v.most, v.writers)
	}
	count(1)
	go func() {
		<-m.Ended()
		count(-1)
	}()
	return nil
}

// begin starts the first members together, and then writes keys and counts voters until the test ends.
func (s *store) begin(t *testing.T, first []*etcdtest.Member, everywhere []net.IP) {
	t.Helper()
	for _, m := range first {
		m.InitialCluster = etcdtest.InitialCluster(first...)
		must(t, s.start(m, "--initial-cluster-state=new"))
	}
	s.client = s.connect(t, everywhere...)
	target("").eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
		defer cancel()
		_, err := s.client.Get(ctx, "x")
		return err
	})
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.work.Go(func() { s.write(ctx) })
	s.work.Go(func() { s.count(ctx) })
	t.Cleanup(s.rest)
}

// rest ends what goes on all along.
func (s *store) rest() {
	s.stop()
	s.work.Wait()
}

// connect is a client of those members that are at some addresses.
func (s *store) connect(t testing.TB, at ...net.IP) *clientv3.Client {
	t.Helper()
	config, err := s.ca.TLS()
	must(t, err)
	to := clientv3.Config{TLS: config, Logger: zap.NewNop()}
	for _, ip := range at {
		to.Endpoints = append(to.Endpoints, "https://"+net.JoinHostPort(ip.String(), s.clientPort))
	}
	c, err := clientv3.New(to)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// write puts one key after another, each once.
func (s *store) write(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		s.put(fmt.Sprintf("%s%06d", written, n))
		pass(ctx, 50*time.Millisecond)
	}
}

func (s *store) put(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	_, err := s.client.Put(ctx, key, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.refused[key] = err
		return
	}
	s.acknowledged[key] = true
}

// count looks all along how many voters there are.
func (s *store) count(ctx context.Context) {
	for ctx.Err() == nil {
		if all, err := s.members(ctx); err == nil {
			n := len(votersOf(all))
			s.mu.Lock()
			s.fewest = min(s.fewest, n)
			s.mu.Unlock()
		}
		pass(ctx, 100*time.Millisecond)
	}
}

func pass(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// members are those that the members have agreed on.
func (s *store) members(ctx context.Context) ([]*etcdserverpb.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	answer, err := s.client.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	return answer.Members, nil
}

func votersOf(all []*etcdserverpb.Member) (out []*etcdserverpb.Member) {
	for _, m := range all {
		if !m.IsLearner {
			out = append(out, m)
		}
	}
	return out
}

// shape is who is a member, and where.
func shape(all []*etcdserverpb.Member) string {
	var lines []string
	for _, m := range all {
		lines = append(lines, fmt.Sprintf("%s %v learner=%v", m.Name, m.PeerURLs, m.IsLearner))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// bearsStopOf fails unless the others agree without a member: those with a vote are asked for what all agreed on, each by itself.
func (s *store) bearsStopOf(t testing.TB, name string) error {
	all, err := s.members(t.Context())
	if err != nil {
		return err
	}
	with, agree := votersOf(all), 0
	var silent error
	for _, m := range with {
		if m.Name == name {
			continue
		}
		if err := s.agrees(t, m); err != nil {
			silent = errors.Join(silent, fmt.Errorf("%s: %w", m.Name, err))
			continue
		}
		agree++
	}
	if agree < len(with)/2+1 {
		return fmt.Errorf("%s: without %s %d of %d voters agree, which is no quorum: %w", s.name, name, agree, len(with), silent)
	}
	return nil
}

// agrees asks a member for what only a quorum can answer.
func (s *store) agrees(t testing.TB, m *etcdserverpb.Member) error {
	t.Helper()
	_, err := s.keysOf(t, m, clientv3.WithCountOnly())
	return err
}

func (s *store) keysOf(t testing.TB, m *etcdserverpb.Member, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	t.Helper()
	if len(m.ClientURLs) == 0 {
		return nil, errors.New("it has never started")
	}
	config, err := s.ca.TLS()
	must(t, err)
	c, err := clientv3.New(clientv3.Config{TLS: config, Logger: zap.NewNop(), Endpoints: m.ClientURLs})
	must(t, err)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
	defer cancel()
	return c.Get(ctx, written, append([]clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithKeysOnly()}, opts...)...)
}

// lost counts the keys that were acknowledged and that a member does not have.
func (s *store) lost(t testing.TB, m *etcdserverpb.Member) (int, error) {
	t.Helper()
	got, err := s.keysOf(t, m)
	if err != nil {
		return 0, err
	}
	has := map[string]bool{}
	for _, kv := range got.Kvs {
		has[string(kv.Key)] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for key := range s.acknowledged {
		if !has[key] {
			n++
		}
	}
	return n, nil
}

// complaints are what must never have happened: voters that were too few, and two writers of one volume.
func (s *store) complaints() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fewest < voters {
		out = append(out, fmt.Sprintf("%s had %d voters", s.name, s.fewest))
	}
	for name, v := range s.volumes {
		if v.most > 1 {
			out = append(out, fmt.Sprintf("%s: the data of %s had %d writers at once", s.name, name, v.most))
		}
	}
	return out
}
