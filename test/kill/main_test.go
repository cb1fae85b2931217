// Package kill kills the replumb process at every event of a full run, on clusters of an API server and etcd alone, and
// has the same command finish the job. The controllers that are missing there are played by internal/testing/apitest, and the
// operator who restarts the API servers with another range by a proxy in front of the API server.
package kill

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/replumb/replumb/internal/cli"
)

// asMain is the environment variable that makes this test binary replumb itself.
const asMain = "REPLUMB_AS_MAIN"

// clusters is how many of them there are: a run waits more than it computes.
const clusters = 3

// shared are the clusters of tests that borrow one. They start when the first of them does.
var shared stock

// stock is clusters, and those of them that no case uses.
type stock struct {
	once sync.Once
	all  []*cluster
	free chan *cluster
	err  error
}

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		os.Exit(cli.Main())
	}
	if err := os.Setenv("GOGC", "400"); err != nil { // the API servers live briefly and need not be thrifty
		panic(err)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	code := m.Run()
	for _, c := range shared.all {
		if err := c.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// get is for one case after the other: each gives its cluster back.
func (p *stock) get(t *testing.T) *cluster {
	t.Helper()
	p.once.Do(p.start)
	if p.err != nil {
		t.Fatal(p.err)
	}
	return <-p.free
}

// start starts all clusters at once.
func (p *stock) start() {
	p.free = make(chan *cluster, clusters)
	started := make([]*cluster, clusters)
	failed := make([]error, clusters)
	var all sync.WaitGroup
	for i := range clusters {
		all.Go(func() { started[i], failed[i] = start() })
	}
	all.Wait()
	p.err = errors.Join(failed...)
	for _, c := range started {
		if c != nil {
			p.all = append(p.all, c)
			p.free <- c
		}
	}
}
