// Package kill kills the replumb process at every event of a full run, on clusters of an API server and etcd alone, and
// has the same command finish the job. The controllers that are missing there are played by internal/testing/apitest, and the
// operator who restarts the API servers with another range by a proxy in front of the API server.
package kill

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/replumb/replumb/internal/cli"
)

// asMain is the environment variable that makes this test binary replumb itself.
const asMain = "REPLUMB_AS_MAIN"

// noted writes a Migration with what its spec has into a file.
func noted(t testing.TB, dir, spec string, args ...any) string {
	t.Helper()
	return described(t, dir, "{name: move}", spec, args...)
}

func described(t testing.TB, dir, metadata, spec string, args ...any) string {
	t.Helper()
	file := filepath.Join(dir, "move.yaml")
	head := "apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: " + metadata + "\nspec:"
	must(t, os.WriteFile(file, []byte(head+fmt.Sprintf(spec, args...)), 0o600))
	return file
}

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		os.Exit(cli.Main())
	}
	if err := os.Setenv("GOGC", "400"); err != nil { // the API servers live briefly and need not be thrifty
		panic(err)
	}
	os.Exit(m.Run())
}
