package lab

import (
	"context"
	"maps"
)

func (l Workers) start(ctx context.Context, fabric *namespace, creds *credentials, m *Member) error {
	if l.Topology.byKubeadm() {
		content, err := l.kubeadm().files(m, creds)
		if err != nil {
			return err
		}
		return l.startMachine(ctx, fabric, m, content)
	}
	content, err := l.files(m, creds)
	if err != nil {
		return err
	}
	config, err := nodeConfig(l.Topology, l.Binaries, m.Name, l.podCGroup(m.Name), m.Proxy, l.edging().resolvConf())
	if err != nil {
		return err
	}
	maps.Copy(content, config)
	maps.Copy(content, l.Addons().registryHosts())
	return l.startMachine(ctx, fabric, m, content)
}

// startMachine starts a worker's machine with some files, and without programs.
func (l Workers) startMachine(ctx context.Context, fabric *namespace, m *Member, content map[string][]byte) error {
	if content == nil {
		content = map[string][]byte{}
	}
	if err := l.machines().startOn(ctx, fabric, l.nodeSpec(m), nil, m, content); err != nil || l.Topology.CNI != HostLocal {
		return err
	}
	return l.machines().masquerade(ctx, m)
}
