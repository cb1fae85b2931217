// Command replumb-lab runs real Kubernetes clusters on one Linux machine, for trying and testing replumb.
package main

import (
	"os"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labcli"
)

func main() {
	lab.RunMachineIfAsked()
	os.Exit(labcli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
