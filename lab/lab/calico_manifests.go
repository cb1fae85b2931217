package lab

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

//go:embed calico-node.yaml
var calicoNodeTemplate string

// CalicoManifests are all that a cluster with another network needs to be given Calico, for `kubectl apply`: its definitions,
// rights, a DaemonSet, and a pool of that range. The image is on the nodes of labs with flannel; it is an *InvalidError for
// others. Resources of Calico's own kinds are last; until the definitions before them are known, the API server takes none.
func CalicoManifests(l *Lab, podCIDR netip.Prefix) ([]byte, error) {
	if l.Topology.CNI != Flannel && l.Topology.Beside != Calico {
		return nil, &InvalidError{
			"cni",
			fmt.Sprintf("the nodes of lab %s have no image of Calico", l.Topology.Name),
			"use a lab with --cni flannel, or with --cni host-local --beside calico",
		}
	}
	if !podCIDR.Addr().Is4() || podCIDR != podCIDR.Masked() {
		return nil, &InvalidError{"pod-cidr", podCIDR.String() + " is not an IPv4 range", "write it like 10.245.0.0/16"}
	}
	return l.Addons().calicoManifests(podCIDR)
}

// installCalicoPods gives the cluster Calico as its users do, by its manifests. Its pods make nodes ready.
func (l Addons) installCalicoPods(ctx context.Context) error {
	manifests, err := l.calicoManifests(l.Topology.PodCIDR)
	if err != nil {
		return err
	}
	return until(ctx, "Calico's objects", func(ctx context.Context) error {
		_, err := l.kubectl(ctx, bytes.NewReader(manifests), "apply", "--server-side", "-f", "-")
		return err
	})
}

func (l Addons) calicoManifests(podCIDR netip.Prefix) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(l.Binaries.calico, "crd", "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("there are no definitions of Calico's in %s", l.Binaries.calico)
	}
	var all [][]byte
	for _, file := range files {
		definition, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, bytes.TrimPrefix(bytes.TrimSpace(definition), []byte("---\n")))
	}
	objects, err := rendered("calico-node.yaml", calicoNodeTemplate, map[string]any{
		"Image": imageRef("calico"), "Path": systemPath, "PodCIDR": podCIDR,
	})
	if err != nil {
		return nil, err
	}
	return bytes.Join(append(all, objects), []byte("\n---\n")), nil
}
