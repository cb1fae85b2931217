// Package kill kills the replumb process at every event of a full run, on clusters of an API server and etcd alone, and
// has the same command finish the job. The controllers that are missing there are played by internal/testing/apitest, and the
// operator who restarts the API servers with another range by a proxy in front of the API server.
package kill

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/replumb/replumb/internal/cli"
)

// asMain is the environment variable that makes this test binary replumb itself.
const asMain = "REPLUMB_AS_MAIN"

// clusters is how many of them there are: a run waits more than it computes.
const clusters = 3

// free are the clusters that no case uses.
var free = make(chan *cluster, clusters)

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		os.Exit(cli.Main())
	}
	if err := os.Setenv("GOGC", "400"); err != nil { // the API servers live briefly and need not be thrifty
		panic(err)
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	started := make(chan *cluster, clusters)
	failed := make(chan error, clusters)
	for range clusters {
		go func() {
			c, err := start()
			failed <- err
			started <- c
		}()
	}
	var errs []error
	for range clusters {
		errs = append(errs, <-failed)
		if c := <-started; c != nil {
			defer func() {
				if err := c.stop(); err != nil {
					fmt.Fprintln(os.Stderr, err)
					code = max(code, 1)
				}
			}()
			free <- c
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
