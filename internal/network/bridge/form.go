package bridge

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/admission"
)

// LoadBalancerLimit bounds the load-balancer bridges of Auto, each of which takes a node port.
const LoadBalancerLimit = 1000

// DefaultNodePorts counts DefaultServiceNodePortRange (k8s.io/kubernetes
// pkg/kubeapiserver/options).
const DefaultNodePorts = 2768

// Candidates are the forms to try for a wish, best first. Load-balancer status has a future, where
// externalIPs are deprecated (KEP-5707) and often forbidden; Auto leaves half of the node ports to
// others.
func Candidates(wish v1alpha1.BridgeForm, needed, free int) []v1alpha1.BridgeForm {
	switch {
	case wish != v1alpha1.BridgeAuto:
		return []v1alpha1.BridgeForm{wish}
	case needed > min(LoadBalancerLimit, free/2):
		return []v1alpha1.BridgeForm{v1alpha1.BridgeExternalIPs}
	}
	return []v1alpha1.BridgeForm{v1alpha1.BridgeLoadBalancer, v1alpha1.BridgeExternalIPs}
}

// Choose is the first candidate that admission lets through.
func Choose(candidates []v1alpha1.BridgeForm, admitted map[v1alpha1.BridgeForm]error) (v1alpha1.BridgeForm, bool) {
	for _, form := range candidates {
		if err, tried := admitted[form]; tried && err == nil {
			return form, true
		}
	}
	return "", false
}

// Try asks by a dry run whether a bridge of a form would be admitted, and returns a refusal apart
// from errors.
func Try(
	ctx context.Context, c client.Client, form v1alpha1.BridgeForm, labels map[string]string, beside *corev1.Service, target netip.Addr,
) (*admission.Refusal, error) {
	old, err := netip.ParseAddr(beside.Spec.ClusterIP)
	if err != nil {
		old = target
	}
	b := &Bridge{Migration: "admission", Service: beside, Old: old, New: target, Form: form, Labels: labels}
	return TryService(ctx, c, b.Build())
}

// TryService asks whether a Service like this one, under a name of its own, would be admitted. An
// API server that is busy, or has no address to give while a range is being retired, is asked
// again; who refuses it, or cannot be asked, has answered.
func TryService(ctx context.Context, c client.Client, like *corev1.Service) (refused *admission.Refusal, err error) {
	waitErr := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		trial := like.DeepCopy()
		trial.Name, trial.GenerateName = "", "replumb-trial-"
		said, answer := admission.Create(ctx, c, trial)
		if ctx.Err() == nil || refused == nil && err == nil { // time that is up tells less than an answer before
			refused, err = said, answer
		}
		if refused != nil {
			return !apierrors.IsInvalid(refused.Err) || !engine.Retryable(NotReadyYet(refused.Err)), nil
		}
		return !engine.Retryable(err), nil
	})
	switch {
	case refused != nil:
		return refused, nil
	case err == nil:
		return nil, waitErr
	}
	return nil, fmt.Errorf("trying a Service in namespace %s: %w", like.Namespace, err)
}
