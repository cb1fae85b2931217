package apitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// PoolVariable is the environment variable that names the directory of a Pool. Without it, every
// Lazy starts a Server of its own.
const PoolVariable = "REPLUMB_TEST_POOL"

// PoolRange is the Service range of the API servers in a Pool.
const PoolRange = "10.96.0.0/16"

// Sort is what the API servers of a Pool have beside etcd.
type Sort string

const (
	// Plain is an API server alone.
	Plain Sort = "plain"
	// Full has Controllers, and Calico's definitions.
	Full Sort = "full"
)

// Pool is API servers that the tests of several packages use, one package at a time each. What
// stands in for controllers runs in the process of the test.
type Pool struct {
	dir     string
	servers []*Server
}

// member is what a file of a Pool's directory says. The lock on the file is held by the user of the
// API server.
type member struct {
	Kubeconfig, CertFile, KeyFile, Etcd string
	Fresh                               *contents
}

// NewPool starts an API server of each Sort that is listed, all at once. dir has to be there. Call
// Stop, also after an error.
func NewPool(ctx context.Context, dir string, sorts ...Sort) (*Pool, error) {
	p := &Pool{dir: dir}
	type started struct {
		n      int
		server *Server
		err    error
	}
	all := make(chan started)
	for n, sort := range sorts {
		go func() {
			s, err := startShared(ctx, sort)
			all <- started{n, s, err}
		}()
	}
	var errs []error
	for range sorts {
		s := <-all
		if s.server != nil {
			p.servers = append(p.servers, s.server)
		}
		if s.err == nil {
			s.err = p.offer(fmt.Sprintf("%s-%d", sorts[s.n], s.n), s.server)
		}
		errs = append(errs, s.err)
	}
	return p, errors.Join(errs...)
}

// startShared returns when API servers and controllers have made what they make at their start.
func startShared(ctx context.Context, sort Sort) (*Server, error) {
	opts := []Option{func(o *options) { o.standIn = func(context.Context, *Server) {} }}
	if sort == Full {
		opts = append([]Option{Calico(), Controllers()}, opts...)
	}
	s, err := Run(PoolRange, opts...)
	if err != nil {
		return nil, err
	}
	l, err := newLister(s)
	if err != nil {
		return s, err
	}
	err = wait.PollUntilContextTimeout(ctx, 2*time.Second, time.Minute, true, func(ctx context.Context) (bool, error) {
		before := s.fresh
		var err error
		if s.fresh, err = l.contents(ctx); err != nil || before == nil {
			return false, nil //nolint:nilerr // the next look may succeed, and the first only gives what to compare with
		}
		same := len(before.Objects) == len(s.fresh.Objects) && slices.Equal(before.Resources, s.fresh.Resources)
		return same, nil
	})
	return s, err
}

// offer puts an API server into the Pool.
func (p *Pool) offer(name string, s *Server) error {
	body, err := json.Marshal(member{Kubeconfig: s.Kubeconfig, CertFile: s.CertFile, KeyFile: s.KeyFile, Etcd: s.Etcd, Fresh: s.fresh})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dir, name+".json"), body, 0o600)
}

// Stop ends the API servers.
func (p *Pool) Stop() error {
	var errs []error
	for _, s := range p.servers {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}

// sort is what a Lazy can take from a Pool; empty, if it needs a Server of its own.
func (o *options) sort() Sort {
	if len(o.flags) != 1 || o.flags[rangeFlag] != PoolRange || len(o.names) > 0 {
		return ""
	}
	switch {
	case !o.calico && len(o.programs) == 0:
		return Plain
	case o.calico && len(o.programs) > 0:
		return Full
	}
	return ""
}

// borrowTime is how long a package waits for others.
const borrowTime = 30 * time.Minute

// borrow takes a free API server out of the pool, empty. It returns nil if the pool has none of the
// sort.
func borrow(ctx context.Context, dir string, o *options) (*Server, error) {
	var taken *os.File
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, borrowTime, true, func(context.Context) (bool, error) {
		files, err := filepath.Glob(filepath.Join(dir, string(o.sort())+"-*.json"))
		if err != nil || len(files) == 0 {
			return true, err
		}
		taken, err = firstFree(files)
		return taken != nil, err
	})
	if err != nil || taken == nil {
		return nil, err
	}
	s, err := open(taken, o)
	if err == nil {
		err = s.Wipe(ctx)
	}
	if err == nil {
		return s, nil
	}
	// Others are spared what cannot be emptied.
	fmt.Fprintf(os.Stderr, "%s is taken out of the pool: %v\n", taken.Name(), err)
	err = os.Rename(taken.Name(), taken.Name()+".spoiled")
	if s != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return nil, errors.Join(err, taken.Close())
}

// firstFree is the first file that no one has locked, locked now. The lock goes with the process,
// however that ends.
func firstFree(files []string) (*os.File, error) {
	for _, name := range files {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// open connects to the API server that a file is about.
func open(file *os.File, o *options) (*Server, error) {
	var m member
	if err := json.NewDecoder(file).Decode(&m); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", m.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 1000, 2000 // as envtest has it
	s := &Server{
		Config: config, Kubeconfig: m.Kubeconfig, CertFile: m.CertFile, KeyFile: m.KeyFile, Etcd: m.Etcd,
		borrowed: file, fresh: m.Fresh, done: make(chan struct{}),
	}
	if s.Cluster, err = cluster.Connect(config); err != nil {
		return nil, err
	}
	s.play(o, nil)
	return s, nil
}
