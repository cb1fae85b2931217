package lab

import (
	"os"

	"github.com/replumb/replumb/lab/machine"
	"github.com/replumb/replumb/lab/named"
)

// The files of the name server, where Debian's AppArmor profile lets it read and write.
const (
	namedConfig   = "/etc/bind/named.conf"
	namedKeyFile  = "/etc/bind/update.key"
	namedRootFile = "/etc/bind/root.zone"
	namedZoneFile = "/var/lib/bind/" + Zone + ".zone" // which it rewrites, with a journal beside it
)

// nameServerPrograms is BIND with one thread: it answers a few questions a second.
func nameServerPrograms() []machine.Program {
	return []machine.Program{{Name: "named", Argv: []string{"named", "-g", "-4", "-n", "1", "-c", namedConfig}}}
}

// nameServerFiles are a zone in which the first network's balancer is the API and the ingress. They are made once, with a key
// that is kept on the host too.
func (l edging) nameServerFiles(m *Member) (map[string][]byte, error) {
	edge, key := l.Edge(), named.NewKey()
	if err := os.WriteFile(edge.UpdateKey, key, 0o600); err != nil {
		return nil, err
	}
	first := edge.Balancers[l.Topology.Networks[0].Name]
	zone := named.Zone{
		Name:     Zone,
		TTL:      recordTTL,
		KeyFile:  namedKeyFile,
		File:     namedZoneFile,
		RootFile: namedRootFile,
		Server:   named.Record{Name: nameServerName, Address: m.Address},
		Records: append(
			[]named.Record{{Name: apiLabel, Address: first}, {Name: ingressLabel, Address: first}},
			l.Addons().registryRecords()...),
	}
	content := map[string][]byte{namedKeyFile: key}
	for path, make := range map[string]func() ([]byte, error){
		namedConfig: zone.Config, namedZoneFile: zone.Content, namedRootFile: zone.Root,
	} {
		data, err := make()
		if err != nil {
			return nil, err
		}
		content[path] = data
	}
	return content, nil
}
