package lab

import (
	"context"
	_ "embed"
)

// FluxNamespace is where Flux is, in labs that have it.
const FluxNamespace = "flux-system"

// The components of Flux, which are the names of their Deployments as well.
const (
	fluxSource    = "source-controller"
	fluxKustomize = "kustomize-controller"
)

// fluxUser is who the image of Flux' controllers runs them as.
const fluxUser = "65534:65534"

//go:embed flux.yaml
var fluxTemplate string

// installFlux returns when both controllers are ready.
func (l Addons) installFlux(ctx context.Context, o Options) error {
	err := l.installAddon(ctx, Flux, fluxTemplate, map[string]any{
		"Namespace": FluxNamespace, "Source": fluxSource, "SourceImage": imageRef(fluxSource),
		"Kustomize": fluxKustomize, "KustomizeImage": imageRef(fluxKustomize),
	})
	if err != nil || len(l.with(Worker)) == 0 {
		return err
	}
	if err := l.waitDeployments(ctx, FluxNamespace, fluxSource, fluxKustomize); err != nil {
		return err
	}
	o.say("Flux fetches and applies from namespace %s", FluxNamespace)
	return nil
}
