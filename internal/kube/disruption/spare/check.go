package spare

import (
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/inventory"
)

// Check is about Deployments that should get one more pod and do not. field has the setting.
func Check[In any](code, field string, found func(In) *Found) findings.Check[In] {
	return findings.Check[In]{
		Code: code, Severity: findings.Warning,
		Claim: "cluster DNS and admission webhooks can get one more pod while pods move",
		Why:   "with fewer than three pods, losing one is noticeable. replumb adds a pod, unless an autoscaler sets the number or no node has room",
		Fix: "raise the number where it is decided, such as minReplicas of the HorizontalPodAutoscaler, or add a node; where it is fine as it is, " +
			"do nothing, or set " + field + ".mode: Disabled",
		Run: func(in In) []findings.Result { return found(in).results() },
	}
}

func (f *Found) results() []findings.Result {
	if f == nil {
		return findings.Skip("no Deployment is to get one more pod")
	}
	var out []findings.Result
	for _, a := range f.Alone {
		name := a.String()
		out = append(out, findings.Failed("Deployment "+name, "deployment %s is left as it is: %s", name, a.Why))
	}
	if len(f.Unseen) > 0 {
		out = append(out, findings.NotKnown("", "the user may not read %s", strings.Join(f.Unseen, ", ")))
	}
	return out
}

// Rights are needed to look, beside Deployments and nodes. Each is optional.
func Rights() []access.Right {
	return slices.Concat(inventory.WebhookRights(), access.Grant("autoscaling", "horizontalpodautoscalers", "", "list"))
}
