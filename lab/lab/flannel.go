package lab

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"text/template"
)

//go:embed flannel.yaml
var flannelTemplate string

// systemPath is where containers find the node's own programs, which the images of a lab do without.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// installFlannel gives the cluster flannel's namespace, rights, configuration and DaemonSet. Its pods make nodes ready.
func (l Addons) installFlannel(ctx context.Context) error {
	manifests, err := flannelManifests(l.Topology.PodCIDR)
	if err != nil {
		return err
	}
	return until(ctx, "flannel's objects", func(ctx context.Context) error {
		_, err := l.kubectl(ctx, bytes.NewReader(manifests), "apply", "--server-side", "-f", "-")
		return err
	})
}

// FlannelManifests are all that a cluster with Calico needs to be given flannel, for `kubectl apply`. Its image is on the nodes of labs that
// came up with flannel; it is an *InvalidError for others.
func FlannelManifests(l *Lab, podCIDR netip.Prefix) ([]byte, error) {
	if l.Topology.CNI != Flannel {
		return nil, &InvalidError{
			"cni", fmt.Sprintf("the nodes of lab %s have no image of flannel", l.Topology.Name), "use a lab with --cni flannel",
		}
	}
	return flannelManifests(podCIDR)
}

func flannelManifests(podCIDR netip.Prefix) ([]byte, error) {
	return rendered("flannel.yaml", flannelTemplate, map[string]any{
		"Image": imageRef("flannel"), "Path": systemPath, "PodCIDR": podCIDR,
	})
}

// rendered is a template of manifests, filled in.
func rendered(name, text string, values map[string]any) ([]byte, error) {
	t, err := template.New(name).Parse(text)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, values); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out.Bytes(), nil
}
