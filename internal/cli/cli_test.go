package cli

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/replumb/replumb/internal/testing/apitest"
)

var update = flag.Bool("update", false, "write golden output into the scripts")

// Scripts share, one after the other: an API server alone, and one with controllers, to which
// they play nodes.
var (
	plain = &apitest.Lazy{Range: apitest.PoolRange}
	full  = &apitest.Lazy{Range: apitest.PoolRange, Options: []apitest.Option{apitest.Calico(), apitest.Controllers()}}
)

// stopping stops the servers after the tests.
type stopping struct{ *testing.M }

func (m stopping) Run() int { return apitest.Main(m.M, plain, full) }

func TestMain(m *testing.M) {
	testscript.Main(stopping{m}, map[string]func(){
		"replumb":         func() { os.Exit(Main()) },
		"kubectl-replumb": func() { os.Exit(Main()) },
	})
}

// TestOffline runs the scripts that need no cluster.
func TestOffline(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/offline", UpdateScripts: *update,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"serve": serve, "served": served},
	})
}
