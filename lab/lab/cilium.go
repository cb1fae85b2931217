package lab

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/image"
)

const (
	ciliumComponent = "cilium"
	// ciliumVersion is what the component is built from, and the tag of images by which people, and replumb, know it.
	ciliumVersion = "v1.20.2"
	ciliumImage   = "replumb.local/cilium:" + ciliumVersion
	operatorImage = "replumb.local/operator-generic:" + ciliumVersion
	// ciliumGroups is where the chart has agents look for control groups, to attach to them what leads processes to Services.
	ciliumGroups = "/run/cilium/cgroupv2"
	// clang compiles Cilium's programs of BPF for each node, when its agent starts and when pods do. It is the machine's own, as iptables is: it
	// comes with a hundred megabytes of libraries, which every node of every lab would unpack. clangDir has it by the name that agents call it by;
	// a script of that name in cilium.yaml comes first.
	clang    = "clang-19"
	clangDir = "/usr/lib/llvm-19/bin"
)

//go:embed cilium.yaml
var ciliumTemplate string

// installCilium gives the cluster Cilium's rights, configuration, agents and operator. The operator makes its definitions, and agents that have
// found these make nodes ready.
func (l Addons) installCilium(ctx context.Context) error {
	manifests, err := l.ciliumManifests(l.Topology.PodCIDR, l.Topology.withoutProxies())
	if err != nil {
		return err
	}
	return until(ctx, "Cilium's objects", func(ctx context.Context) error {
		_, err := l.kubectl(ctx, bytes.NewReader(manifests), "apply", "--server-side", "-f", "-")
		return err
	})
}

// CiliumManifests are all that a cluster with another network needs to be given Cilium, for `kubectl apply`: rights, configuration, agents, and
// the operator, which makes its definitions. Its tunnels have another UDP port than flannel's, which is Cilium's usual one too. Nodes can run it
// in labs with it beside their own network; it is an *InvalidError for others.
func CiliumManifests(l *Lab, podCIDR netip.Prefix) ([]byte, error) {
	return besideManifests(l, podCIDR, false)
}

// CiliumManifestsInPlaceOfProxies are as CiliumManifests, and have Cilium do the work of kube-proxy too. Packets of pods are led one by one, so that
// connections to Services that are open stay so, and agents say that they are well where kube-proxy does.
func CiliumManifestsInPlaceOfProxies(l *Lab, podCIDR netip.Prefix) ([]byte, error) {
	return besideManifests(l, podCIDR, true)
}

func besideManifests(l *Lab, podCIDR netip.Prefix, replaces bool) ([]byte, error) {
	if l.Topology.Beside != Cilium {
		return nil, &InvalidError{
			"cni",
			fmt.Sprintf("the nodes of lab %s cannot run Cilium", l.Topology.Name),
			"use a lab with --cni flannel or host-local, and --beside cilium",
		}
	}
	if !podCIDR.Addr().Is4() || podCIDR != podCIDR.Masked() {
		return nil, &InvalidError{"pod-cidr", podCIDR.String() + " is not an IPv4 range", "write it like 10.246.0.0/16"}
	}
	return l.Addons().ciliumManifests(podCIDR, replaces)
}

func (l Addons) ciliumManifests(podCIDR netip.Prefix, replaces bool) ([]byte, error) {
	cache, err := component.CacheDir() // which machines see where it is
	if err != nil {
		return nil, err
	}
	values := map[string]any{
		"Image": ciliumImage, "Operator": operatorImage, "Path": "/lab/bin:/bin:" + clangDir + ":" + systemPath, "Clang": clangDir,
		"Compiled": filepath.Join(cache, "compiled"),
		"PodCIDR":  podCIDR, "NodeBits": nodeBits, "Groups": ciliumGroups, "ReplacesProxy": replaces,
		"Beside": l.Topology.Beside == Cilium,
	}
	if replaces { // nothing else leads agents to the API before they do so themselves
		api, err := url.Parse(l.Balancers().server())
		if err != nil {
			return nil, fmt.Errorf("address of the API: %w", err)
		}
		values["APIHost"], values["APIPort"] = api.Hostname(), api.Port()
	}
	return rendered("cilium.yaml", ciliumTemplate, values)
}

// nodeBits is the length of the range that each node gets for its pods.
const nodeBits = 24

// ciliumImages are laid out as Cilium's own, without what they have of a distribution.
func ciliumImages(b binaries) ([]image.Image, error) {
	files := map[string]string{
		"bin/cilium-dbg": filepath.Join(b.cilium, "cilium-dbg"), "bin/cilium-health-responder": filepath.Join(b.cilium, "responder"),
		"opt/cni/bin/cilium-cni": filepath.Join(b.cilium, "cilium-cni"),
	}
	if err := addSources(files, filepath.Join(b.cilium, "crd")); err != nil {
		return nil, fmt.Errorf("sources of Cilium's programs of BPF: %w", err)
	}
	return []image.Image{
		{
			Ref: ciliumImage, Binary: filepath.Join(b.cilium, "daemon"), Name: "bin/cilium-agent", More: files,
			MoreLinks: map[string]string{"var/run": "run"}, // volumes are in the one, and sought in the other
		},
		{Ref: operatorImage, Binary: filepath.Join(b.cilium, "operator"), Name: "bin/cilium-operator-generic"},
	}, nil
}

// addSources has the sources of BPF in a folder be where agents compile them, without their tests.
func addSources(files map[string]string, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(dir, path)
		if err != nil || inside == "." {
			return err
		}
		if top, _, _ := strings.Cut(inside, "/"); d.IsDir() && (top == "tests" || top == "complexity-tests" || top == "test-progs") {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			files[filepath.Join("var/lib/cilium/bpf", inside)] = path
		}
		return nil
	})
}
