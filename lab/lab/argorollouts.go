package lab

import (
	"context"
	_ "embed"
)

// argoRollouts is the name of the component, the Deployment and its namespace.
const argoRollouts = "argo-rollouts"

//go:embed argorollouts.yaml
var argoRolloutsTemplate string

// installArgoRollouts returns when the controller is ready.
func (l Addons) installArgoRollouts(ctx context.Context, o Options) error {
	err := l.installAddon(ctx, ArgoRollouts, argoRolloutsTemplate, map[string]any{"Name": argoRollouts, "Image": imageRef(argoRollouts)})
	if err != nil || len(l.with(Worker)) == 0 {
		return err
	}
	if err := l.waitDeployments(ctx, argoRollouts, argoRollouts); err != nil {
		return err
	}
	o.say("Argo Rollouts replaces pods")
	return nil
}
