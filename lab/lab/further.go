package lab

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/replumb/replumb/lab/image"
)

// needs tells whether a lab runs a component.
func (t Topology) needs(component string) bool {
	switch component {
	case "registry":
		return t.Registry != ""
	case "certmanager":
		return t.CertManager
	case fluxSource, fluxKustomize:
		return t.Flux
	default:
		return t.CNI.needs(component)
	}
}

// furtherImages are of what only labs like this one have in their clusters.
func (l images) furtherImages() []image.Image {
	var all []image.Image
	if l.Topology.CertManager {
		all = append(all, l.certManagerImages()...)
	}
	if l.Topology.Flux {
		all = append(all, l.fluxImages()...)
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
	if l.Topology.CertManager {
		g.Go(func() error { return l.installCertManager(ctx, o, creds.site.Pair) })
	}
	if l.Topology.Flux {
		g.Go(func() error { return l.installFlux(ctx, o) })
	}
	return g.Wait()
}
