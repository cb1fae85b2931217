package lab

import (
	"path/filepath"

	"github.com/replumb/replumb/lab/machine"
)

const (
	podnetProgram    = "podnet"
	podnetUser       = "replumb-lab:podnet"
	podnetKubeconfig = "/etc/kubernetes/podnet.conf"
)

// podnet is the agent that follows what Nodes say of ranges (lab/podnet), on the machine of a node, or on a control plane,
// which has no Node and needs routes only. Labs with Calico have none.
func podnet(b binaries, node string) []machine.Program {
	if b.podnet == "" {
		return nil
	}
	argv := []string{filepath.Join(b.podnet, podnetProgram), "--kubeconfig=" + podnetKubeconfig}
	if node != "" {
		argv = append(argv, "--node="+node, "--config="+cniConfigPath)
	}
	return []machine.Program{{Name: podnetProgram, Argv: argv}}
}
