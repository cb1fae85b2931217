package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/image"
)

// ownMain is a main package of this checkout.
type ownMain struct {
	module component.Module
	pkg    string
	// also is a further name of the image, by which others ask for one like it.
	also string
}

// ownImages are those built from main packages of this checkout, by name: the image of name N is replumb.local/N:lab.
func ownImages() map[string]ownMain {
	return map[string]ownMain{
		"pause":   {module: component.Lab, pkg: "./images/pause", also: "registry.k8s.io/pause:3.10.2"}, // which kubeadm pulls
		"echo":    {module: component.Lab, pkg: "./images/echo"},
		"client":  {module: component.Lab, pkg: "./images/client"},
		"ingress": {module: component.Lab, pkg: "./images/ingress"},
		"replumb": {module: component.Product, pkg: "./cmd/replumb"},
	}
}

// networkImages are those that the networks of a lab run in pods, and by what name the archive is kept that has them.
func (t Topology) networkImages(b binaries) (set string, all []image.Image, err error) {
	for _, cni := range []CNI{t.CNI, t.Beside} {
		images, err := networkImages(cni, b)
		if err != nil {
			return "", nil, err
		}
		if cni == Calico && (t.Beside == Calico || t.byKubeadm()) {
			images = []image.Image{calicoImage(b)}
		}
		if len(images) > 0 {
			set += string(cni) + "-"
		}
		all = append(all, images...)
	}
	if t.ProxyPods {
		proxy, err := kubeProxyImage(b)
		if err != nil {
			return "", nil, err
		}
		set, all = set+"kube-proxy-", append(all, proxy)
	}
	return set, all, nil
}

// networkImages are those that a cluster with that network runs in pods, and those of the network it may be given in its place.
func networkImages(cni CNI, b binaries) ([]image.Image, error) {
	switch cni {
	case Cilium:
		return ciliumImages(b)
	case Flannel:
		return flannelImages(b), nil
	default:
		return nil, nil
	}
}

// flannelImages are flannel's, and Calico's, which the cluster may be given in its place.
func flannelImages(b binaries) []image.Image {
	return []image.Image{
		{
			Ref: imageRef("flannel"), Binary: filepath.Join(b.flannel, "flannel"), Name: "flannel",
			Links: []string{"opt/bin/flanneld"},
		},
		calicoImage(b),
	}
}

// calicoImage is Calico's, for clusters that are given it in place of another network. Everything in its folder of plugins is installed on the nodes.
func calicoImage(b binaries) image.Image {
	var links []string
	for _, name := range []string{"startup", "felix", "allocate-tunnel-addrs", "monitor-token"} {
		links = append(links, "bin/calico-"+name)
	}
	return image.Image{
		Ref: imageRef("calico"), Binary: filepath.Join(b.calico, "calico"), Name: "opt/cni/bin/calico",
		Links: append(links, "opt/cni/bin/calico-ipam", "opt/cni/bin/install"),
		More:  map[string]string{"opt/cni/bin/portmap": filepath.Join(b.cni, "portmap")},
	}
}

// buildImages makes the archive of all images of a lab, or finds it made, and returns its path. Labs that need others than the
// usual ones have archives of their own, by the name of the set.
func buildImages(ctx context.Context, set, coreDNS string, others ...image.Image) (string, error) {
	cache, err := component.CacheDir()
	if err != nil {
		return "", err
	}
	// A folder per process: two labs that come up at once must not build over each other.
	dir, err := os.MkdirTemp(cache, ".images-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	images := append([]image.Image{{Ref: imageRef("coredns"), Binary: coreDNS, Name: "coredns"}}, others...)
	for name, main := range ownImages() {
		binary := filepath.Join(dir, name)
		if err := component.BuildMain(ctx, main.module, main.pkg, binary); err != nil {
			return "", fmt.Errorf("image %s: %w", name, err)
		}
		i := image.Image{Ref: imageRef(name), Binary: binary, Name: name}
		if name == "replumb" { // as it is released
			i.User = image.NonRoot
		}
		images = append(images, i)
		if i.Ref = main.also; i.Ref != "" {
			images = append(images, i)
		}
	}
	key, err := contentKey(images)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, set+"images-"+key+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tmp := filepath.Join(dir, "images.tar")
	if err := image.WriteTar(tmp, images); err != nil {
		return "", err
	}
	old, _ := filepath.Glob(filepath.Join(cache, set+"images-*.tar"))
	for _, o := range old { // of an earlier state of the sources: at over 100 MB each, not worth keeping
		_ = os.Remove(o)
	}
	return path, os.Rename(tmp, path)
}

func imageRef(name string) string { return "replumb.local/" + name + ":lab" }

// contentKey is a short hash of what the images hold.
func contentKey(images []image.Image) (string, error) {
	sums := map[string]string{}
	for _, i := range images {
		f, err := os.Open(i.Binary)
		if err != nil {
			return "", err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		_ = f.Close()
		if err != nil {
			return "", err
		}
		sums[i.Ref] = hex.EncodeToString(h.Sum(nil)) + fmt.Sprint(i.Name, i.Links, i.More)
	}
	h := sha256.New()
	_, _ = fmt.Fprint(h, sums) // fmt prints maps in the order of their keys
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// Load makes the images of archives, as `docker save` writes them, known to every node.
func (l Workers) Load(ctx context.Context, archives ...string) error {
	return l.loadOnAll(ctx, l.NodeNames(), archives)
}

func (l Workers) loadOnAll(ctx context.Context, machines, archives []string) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, node := range machines {
		g.Go(func() error {
			for _, archive := range archives {
				if err := l.loadOn(ctx, node, archive); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (l Workers) loadOn(ctx context.Context, node, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	m, err := l.Machine(node)
	if err != nil {
		return err
	}
	if err := l.waitContainerd(ctx, m); err != nil {
		return fmt.Errorf("containerd on %s: %w", node, err)
	}
	cmd, err := m.Command(ctx, filepath.Join(l.Binaries.containerd, "ctr"), "--namespace", "k8s.io", "images", "import", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = f
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("loading %s on %s: %w: %s", archive, node, err, out)
	}
	return nil
}

// build makes what runs in the lab, or finds it made, and returns the archive of images for the nodes.
func (l images) build(ctx context.Context, o Options) (images string, err error) {
	b, err := component.NewBuilder(o.Progress)
	if err != nil {
		return "", err
	}
	b.Line = o.Line
	needed := slices.DeleteFunc(component.All(), func(c component.Component) bool { return !l.Topology.runs(c) })
	dirs, err := b.Build(ctx, needed...)
	if err != nil {
		return "", err
	}
	l.Binaries = binaries{
		kubernetes: l.Topology.kubernetesIn(
			dirs,
		),
		containerd: dirs["containerd"],
		cni:        dirs["cni"],
		calico:     dirs["calico"],
		flannel:    dirs["flannel"],
		kubeadm:    dirs[kubeadmComponent],
	}
	l.Binaries.cilium = dirs[ciliumComponent]
	l.Binaries.registry, l.Binaries.further = dirs["registry"], l.Topology.ofAddons(dirs)
	if err := l.writeFurther(); err != nil {
		return "", err
	}
	if l.Topology.CNI == HostLocal {
		// In the lab's own folder, which machines see at its path; the go command does the caching.
		l.Binaries.podnet = l.dir("bin")
		if err := component.BuildMain(ctx, component.Lab, "./podnet", filepath.Join(l.Binaries.podnet, podnetProgram)); err != nil {
			return "", err
		}
	}
	if l.Topology.Edge && !l.Fabrics().isGuest() {
		if err := component.BuildMain(ctx, component.Lab, "./images/client", l.dir("bin", probingClient)); err != nil {
			return "", err
		}
	}
	set, others, err := l.Topology.networkImages(l.Binaries)
	if err != nil {
		return "", err
	}
	coreDNS := filepath.Join(dirs["coredns"], "coredns")
	if l.Topology.byKubeadm() {
		its, err := kubeadmImages(l.Binaries, coreDNS, l.Topology.Kubernetes)
		if err != nil {
			return "", err
		}
		set, others = set+"kubeadm-", append(others, its...)
	}
	return buildImages(ctx, set, coreDNS, others...)
}

// keepImages keeps an archive for nodes that join later: the cache drops it when others are built.
func (l images) keep(archive string) string {
	kept := l.dir("images.tar")
	if os.Link(archive, kept) != nil { // on another file system
		return archive
	}
	return kept
}
