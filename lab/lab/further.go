package lab

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/replumb/replumb/lab/image"
)

// needs tells whether a lab runs a component.
func (t Topology) needs(component string) bool {
	switch {
	case isRelease(component):
		return component == t.release().component
	case component == kubeadmComponent:
		return t.byKubeadm()
	case isClusterAPI(component):
		return t.byClusterAPI()
	case component == "registry":
		return t.Registry != ""
	default:
		if addon := madeOf(component); addon != "" {
			return slices.Contains(t.With, addon)
		}
		return t.CNI.needs(component) || t.Beside.needs(component)
	}
}

// furtherImages are of what only labs like this one have in their clusters.
func (l images) furtherImages() []image.Image {
	var all []image.Image
	for _, addon := range l.Topology.With {
		all = append(all, addon.images(l.Binaries)...)
	}
	return all
}

// writeFurther writes the archive of images that only labs like this one have: every node reads all it is given.
func (l images) writeFurther() error {
	if all := l.furtherImages(); len(all) > 0 {
		return image.WriteTar(l.further(), all)
	}
	return nil
}

func (l images) further() string { return l.dir("further-images.tar") }

// archives are of what every node is given.
func (l images) archives() []string {
	if len(l.furtherImages()) == 0 {
		return []string{l.Images}
	}
	return []string{l.Images, l.further()}
}

// equip gives a cluster that is up what this lab has beside it.
func (l Addons) equip(ctx context.Context, o Options, creds *credentials) error {
	g, ctx := errgroup.WithContext(ctx)
	if l.Topology.Edge {
		g.Go(func() error { return l.openIngress(ctx, o) })
	}
	for _, addon := range l.Topology.With {
		g.Go(func() error { return l.install(ctx, o, creds, addon) })
	}
	return g.Wait()
}
