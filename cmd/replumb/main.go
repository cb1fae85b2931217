// Command replumb changes the network under a live Kubernetes cluster without dropping a request.
package main

import (
	"os"

	"github.com/replumb/replumb/internal/cli"
)

func main() { os.Exit(cli.Main()) }
