package lab

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/template"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/lab/image"
)

// Addon is software that runs in a cluster beside its workloads, as many clusters have it.
type Addon string

// The add-ons that there are.
const (
	// CertManager issues certificates. See ClusterIssuer.
	CertManager Addon = "cert-manager"
	// Flux is two of its controllers: what fetches sources, and what applies what is in them. See FluxNamespace.
	Flux Addon = "flux"
	// Traefik leads requests from outside to Services. See TraefikNamespace.
	Traefik Addon = "traefik"
	// MetalLB gives Services of type LoadBalancer addresses in the network of nodes. See LoadBalancers.
	MetalLB Addon = "metallb"
	// MetricsServer serves an API that API servers ask at a Service. It puts a kube-proxy onto control planes.
	MetricsServer Addon = "metrics-server"
	// ArgoRollouts replaces pods, and leads Services to those it chooses.
	ArgoRollouts Addon = "argo-rollouts"
)

// AllAddons are those that there are.
func AllAddons() []Addon {
	return []Addon{ArgoRollouts, CertManager, Flux, MetalLB, MetricsServer, Traefik}
}

// program is a binary of a component, and the image that it alone is in.
type program struct {
	image, component, binary string
	user                     string // that it runs as
}

// programs are what an add-on runs.
func (a Addon) programs() []program {
	switch a {
	case CertManager:
		return []program{{image: certManagerImage, component: "certmanager", binary: "certmanager"}}
	case Flux:
		return []program{
			{image: fluxSource, component: fluxSource, binary: fluxSource, user: fluxUser},
			{image: fluxKustomize, component: fluxKustomize, binary: fluxKustomize, user: fluxUser},
		}
	case Traefik:
		return []program{{image: "traefik", component: "traefik", binary: "traefik", user: image.NonRoot}}
	case MetalLB:
		return []program{
			{image: metalLBController, component: "metallb", binary: "controller", user: image.NonRoot},
			{image: metalLBSpeaker, component: "metallb", binary: "speaker"},
		}
	case MetricsServer:
		return []program{{image: metricsServer, component: metricsServer, binary: metricsServer, user: image.NonRoot}}
	case ArgoRollouts:
		return []program{{image: argoRollouts, component: argoRollouts, binary: "rollouts-controller", user: image.NonRoot}}
	default:
		return nil
	}
}

// madeOf is the add-on that a component is for; empty, if it is for none.
func madeOf(component string) Addon {
	for _, a := range AllAddons() {
		if slices.ContainsFunc(a.programs(), func(p program) bool { return p.component == component }) {
			return a
		}
	}
	return ""
}

// ofAddons are those of the folders of components that this lab's add-ons are made of, and what makes its machines.
func (t Topology) ofAddons(dirs map[string]string) map[string]string {
	further := maps.Clone(dirs)
	maps.DeleteFunc(further, func(component, _ string) bool {
		return !slices.Contains(t.With, madeOf(component)) && !isClusterAPI(component)
	})
	return further
}

// images are those of what an add-on runs.
func (a Addon) images(b binaries) []image.Image {
	var all []image.Image
	for _, p := range a.programs() {
		all = append(all, image.Image{
			Ref: imageRef(p.image), Binary: filepath.Join(b.further[p.component], p.binary), Name: p.binary, User: p.user,
		})
	}
	return all
}

func (t Topology) validateWith() error {
	for _, a := range t.With {
		if len(a.programs()) == 0 {
			return &InvalidError{"with", fmt.Sprintf("%q is nothing that a lab can have", a), fmt.Sprintf("there is %v", AllAddons())}
		}
	}
	if t.callsServices() && t.CNI != HostLocal {
		return &InvalidError{
			"with", fmt.Sprintf("API servers cannot reach pods of %s, which they are to ask for metrics", t.CNI), "use --cni host-local",
		}
	}
	return nil
}

// callsServices tells whether API servers are to call Services, which takes a kube-proxy where they are.
func (t Topology) callsServices() bool { return slices.Contains(t.With, MetricsServer) }

// install returns when an add-on works.
func (l Addons) install(ctx context.Context, o Options, creds *credentials, a Addon) error {
	switch a {
	case CertManager:
		return l.installCertManager(ctx, o, creds.site.Pair)
	case Flux:
		return l.installFlux(ctx, o)
	case Traefik:
		return l.installTraefik(ctx, o)
	case MetalLB:
		return l.installMetalLB(ctx, o)
	case MetricsServer:
		return l.installMetricsServer(ctx, o)
	default:
		return l.installArgoRollouts(ctx, o)
	}
}

// installAddon applies an add-on's definitions and manifests, as soon as the API server takes them.
func (l Addons) installAddon(ctx context.Context, a Addon, manifests string, values map[string]any) error {
	var components []string
	for _, p := range a.programs() {
		components = append(components, p.component)
	}
	for _, component := range slices.Compact(components) {
		definitions, err := definitionsIn(filepath.Join(l.Binaries.further[component], "crd"))
		if err != nil {
			return err
		}
		for _, file := range definitions {
			// server-side, because the schemas are longer than what fits into an annotation
			if _, err := l.kubectl(ctx, nil, "apply", "--server-side", "-f", file); err != nil {
				return err
			}
		}
	}
	t, err := template.New(string(a)).Parse(manifests)
	if err != nil {
		return err
	}
	var objects bytes.Buffer
	if err := t.Execute(&objects, values); err != nil {
		return err
	}
	return until(ctx, "the API server to take the objects of "+string(a), func(ctx context.Context) error {
		_, err := l.kubectl(ctx, bytes.NewReader(objects.Bytes()), "apply", "--server-side", "-f", "-")
		return err
	})
}

// definitionsIn are the files of a folder that define kinds: a module may have others beside them.
func definitionsIn(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) { // a component without
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte("\nkind: CustomResourceDefinition")) {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// waitDeployments returns when all replicas of all are ready.
func (l Addons) waitDeployments(ctx context.Context, namespace string, names ...string) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, name := range names {
		g.Go(func() error {
			return until(ctx, "Deployment "+namespace+"/"+name, func(ctx context.Context) error {
				d, err := l.Client().AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				return deploymentReady(d)
			})
		})
	}
	return g.Wait()
}
