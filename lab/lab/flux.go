package lab

import (
	"bytes"
	"context"
	_ "embed"
	"path/filepath"
	"text/template"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/lab/image"
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

func (l images) fluxImages() []image.Image {
	var all []image.Image
	for name, dir := range map[string]string{fluxSource: l.Binaries.fluxSource, fluxKustomize: l.Binaries.fluxKustomize} {
		all = append(all, image.Image{Ref: imageRef(name), Binary: filepath.Join(dir, name), Name: name, User: fluxUser})
	}
	return all
}

//go:embed flux.yaml
var fluxTemplate string

// installFlux returns when both controllers are ready.
func (l Addons) installFlux(ctx context.Context, o Options) error {
	for _, dir := range []string{l.Binaries.fluxSource, l.Binaries.fluxKustomize} {
		// server-side, because the schemas are longer than what fits into an annotation
		if _, err := l.kubectl(ctx, nil, "apply", "--server-side", "-f", filepath.Join(dir, "crd")); err != nil {
			return err
		}
	}
	t, err := template.New("flux.yaml").Parse(fluxTemplate)
	if err != nil {
		return err
	}
	var manifests bytes.Buffer
	err = t.Execute(&manifests, map[string]any{
		"Namespace": FluxNamespace, "Source": fluxSource, "SourceImage": imageRef(fluxSource),
		"Kustomize": fluxKustomize, "KustomizeImage": imageRef(fluxKustomize),
	})
	if err != nil {
		return err
	}
	if _, err := l.kubectl(ctx, &manifests, "apply", "--server-side", "-f", "-"); err != nil || len(l.with(Worker)) == 0 {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, name := range []string{fluxSource, fluxKustomize} {
		g.Go(func() error {
			return until(ctx, "Flux' "+name, func(ctx context.Context) error {
				d, err := l.Client().AppsV1().Deployments(FluxNamespace).Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				return deploymentReady(d)
			})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	o.say("Flux fetches and applies from namespace %s", FluxNamespace)
	return nil
}
