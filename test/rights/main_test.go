// Package rights holds the roles in deploy against what API servers have seen: whole migrations run as a user who has them and nothing
// else, and the audit log says whether anything was denied, and whether any right was never used.
package rights

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/replumb/replumb/internal/cli"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// asMain is the environment variable that makes this test binary replumb itself.
const asMain = "REPLUMB_AS_MAIN"

// policy has every request written down, when it has been answered.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
`

// stage is an API server that tests share, and its audit log.
type stage struct {
	server *apitest.Lazy
	log    string
}

// Migrations are recorded in shared. What they copy goes to second.
var shared, second stage

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		os.Exit(cli.Main())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "replumb-audit-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		panic(err)
	}
	shared, second = newStage(filepath.Join(dir, "audit.log"), file), newStage(filepath.Join(dir, "second.log"), file)
	return apitest.Main(m, shared.server, second.server)
}

// newStage is one whose API server writes that log, and starts when a test asks for it.
func newStage(log, policy string) stage {
	return stage{log: log, server: &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{
		apitest.Calico(), apitest.Controllers("endpointslice-controller"),
		apitest.Flag("audit-policy-file", policy), apitest.Flag("audit-log-path", log), apitest.Flag("audit-log-mode", "blocking"),
	}}}
}
