package apitest

import (
	"fmt"
	"os"
	"strings"
)

// FlagsVariable is the environment variable with flags for each API server of its own that a test
// starts, NAME=VALUE separated by spaces: so that the tests can be run with another Kubernetes,
// named by KUBEBUILDER_ASSETS, whose features take flags.
const FlagsVariable = "REPLUMB_TEST_APISERVER_FLAGS"

// fromEnvironment adds those flags.
func (o *options) fromEnvironment() error {
	for _, flag := range strings.Fields(os.Getenv(FlagsVariable)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		if !ok {
			return fmt.Errorf("%s has %q\nhint: write NAME=VALUE", FlagsVariable, flag)
		}
		o.flags[name] = value
	}
	return nil
}
