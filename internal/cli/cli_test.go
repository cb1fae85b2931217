package cli

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write golden output into the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
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
