// Package hostile attacks migrations as those would who may write something that replumb reads: a tenant with the ClusterRole
// edit in one namespace, a node with its kubelet's identity, a writer of one Secret, a writer of Migrations. The API server is
// real, with the authorizers and the admission of a kubeadm cluster; docs/design/trust.md names the attack behind each boundary.
package hostile

import (
	"os"
	"testing"

	"github.com/replumb/replumb/internal/cli"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// asMain is the environment variable that makes this test binary replumb itself.
const asMain = "REPLUMB_AS_MAIN"

// server is the API server that all attacks share.
var server = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{
	apitest.Flag("authorization-mode", "Node,RBAC"),
	apitest.Flag("enable-admission-plugins", "NodeRestriction"),
}}

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		os.Exit(cli.Main())
	}
	os.Exit(server.Main(m))
}
