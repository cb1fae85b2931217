package hop

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/admission"
)

// strandedError says why a Service is refused an address after it has left its own. Others are not
// held up by it: the Service stays of type ExternalName, and its bridge answers for it.
type strandedError struct{ why error }

func (e *strandedError) Error() string { return e.why.Error() }
func (e *strandedError) Unwrap() error { return e.why }

// Advice is what every command that ends with such Services says.
func (*strandedError) Advice() string {
	return "except the Service from what refuses it, and run the same command again, which completes it; its bridge answers meanwhile"
}

func stranded(why error) error { return &strandedError{why} }

// patience is for how long a refusal is taken for one that passes: quotas count what the first
// patch has given up until their controller looks again, and webhooks are restarted.
const patience = 30 * time.Second

// mayYet has a refusal that may pass tried again, for a time.
func (a *attempt) mayYet(refused *admission.Refusal) error {
	p := a.progress
	if p.refusedSince.IsZero() {
		p.refusedSince = a.Now()
	}
	if a.Now().Sub(p.refusedSince) > patience {
		return stranded(refused)
	}
	return engine.NotYet("service %s: %w", p.Key(), refused)
}

// strand leaves a Service between its patches, with its old address reserved.
func (h *hopStep) strand(ctx context.Context, a *attempt, by *strandedError) error {
	p := h.progress
	if err := a.reserveMeanwhile(ctx); err != nil {
		return err
	}
	p.refusedSince = time.Time{}
	p.stranded = "gets no address: " + by.Error()
	byHand, err := a.byHand()
	if err != nil {
		return err
	}
	if h.OnStranded != nil {
		h.OnStranded(p.Service.UID, Stranded{Why: p.stranded, ByHand: byHand})
	}
	return nil
}

// Stranded is why a Service got no address between its patches, and the command that gives it one.
type Stranded struct{ Why, ByHand string }

// byHand is the second patch as a command, for who may write what is refused here.
func (a *attempt) byHand() (string, error) {
	original, err := a.progress.OriginalSpec(a.svc)
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(map[string]any{"spec": a.patchToClusterIP(a.svc, original)["spec"]})
	if err != nil {
		return "", fmt.Errorf("service %s: %w", a.progress.Key(), err)
	}
	key := a.progress.Key()
	return fmt.Sprintf("kubectl patch service -n %s %s --field-manager=%s --type merge -p '%s'",
		key.Namespace, key.Name, v1alpha1.FieldManager, body), nil
}
