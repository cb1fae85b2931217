package lab

import (
	"context"
	_ "embed"
)

// Traefik is in a namespace of its own, as the Service of the same name, and serves Ingresses of class traefik, and IngressRoutes.
const (
	TraefikNamespace = "traefik"
	TraefikService   = "traefik"
	TraefikClass     = "traefik"
	// TraefikNodePort leads to it at every node.
	TraefikNodePort = 30180
)

//go:embed traefik.yaml
var traefikTemplate string

// installTraefik returns when it is ready.
func (l Addons) installTraefik(ctx context.Context, o Options) error {
	err := l.installAddon(ctx, Traefik, traefikTemplate, map[string]any{
		"Namespace": TraefikNamespace,
		"Name":      TraefikService,
		"Class":     TraefikClass,
		"NodePort":  TraefikNodePort,
		"Image":     imageRef("traefik"),
	})
	if err != nil || len(l.with(Worker)) == 0 {
		return err
	}
	if err := l.waitDeployments(ctx, TraefikNamespace, TraefikService); err != nil {
		return err
	}
	o.say("Traefik serves Ingresses of class %s, and IngressRoutes", TraefikClass)
	return nil
}
