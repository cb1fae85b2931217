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
)

// LoadBalancerLimit is how many load-balancer bridges Auto makes at most. Each takes a health-check port out of the
// node-port range, which has 2,768 ports unless configured otherwise (k8s.io/kubernetes
// pkg/kubeapiserver/options, DefaultServiceNodePortRange) and is shared with everybody else.
const LoadBalancerLimit = 1000

// Candidates are the forms to try for a wish, best first. Load-balancer status is the form with a future: externalIPs
// are deprecated (KEP-5707), and admission often forbids them.
func Candidates(wish v1alpha1.BridgeForm, needed int) []v1alpha1.BridgeForm {
	switch {
	case wish != v1alpha1.BridgeAuto:
		return []v1alpha1.BridgeForm{wish}
	case needed > LoadBalancerLimit:
		return []v1alpha1.BridgeForm{v1alpha1.BridgeExternalIPs}
	}
	return []v1alpha1.BridgeForm{v1alpha1.BridgeLoadBalancer, v1alpha1.BridgeExternalIPs}
}

// Choose is the first candidate that admission lets through.
func Choose(wish v1alpha1.BridgeForm, needed int, admitted map[v1alpha1.BridgeForm]error) (v1alpha1.BridgeForm, bool) {
	for _, form := range Candidates(wish, needed) {
		if err, tried := admitted[form]; tried && err == nil {
			return form, true
		}
	}
	return "", false
}

// Try asks the API server, by a dry-run create, whether a bridge of a form would be admitted beside a Service. It
// returns the reason of a refusal apart from the error of a question that got no answer.
func Try(ctx context.Context, c client.Client, form v1alpha1.BridgeForm, beside *corev1.Service, target netip.Addr) (refused, err error) {
	old, err := netip.ParseAddr(beside.Spec.ClusterIP)
	if err != nil {
		old = target
	}
	b := &Bridge{Migration: "admission", Service: beside, Old: old, New: target, Form: form}
	trial := b.Build()
	trial.Name, trial.GenerateName = "", "replumb-trial-"
	// While a range is being retired there are moments in which the API server has none to give an address from.
	waitErr := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		err = c.Create(ctx, trial.DeepCopy(), client.DryRunAll)
		return !engine.Retryable(NotReadyYet(err)), nil
	})
	switch {
	case err == nil:
		return nil, waitErr
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return fmt.Errorf("in namespace %s: %w", beside.Namespace, err), nil
	}
	return nil, fmt.Errorf("trying a bridge in namespace %s: %w", beside.Namespace, err)
}
