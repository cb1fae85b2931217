// Package admission tries writes out by dry runs, and says who refuses them.
package admission

import (
	"context"
	"errors"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Unnamed is who refuses a write where the answer names no one.
const Unnamed = "the API server"

// Refusal is a write that the API server does not take.
type Refusal struct {
	// By is who refuses it, as kind and name, or Unnamed.
	By string
	// Quota says that it is a ResourceQuota that does.
	Quota bool
	// Down says that who is to judge it cannot be asked: a webhook that fails closed.
	Down bool
	Err  error
}

func (r *Refusal) Error() string { return r.By + ": " + r.Reason() }
func (r *Refusal) Unwrap() error { return r.Err }

// Reason is the answer without the name of the object, which is a made-up one in trials.
func (r *Refusal) Reason() string {
	text := r.Err.Error()
	for _, cut := range []string{" denied request: ", " denied the request: ", " is forbidden: ", " is invalid: "} {
		if _, after, found := strings.Cut(text, cut); found {
			return after
		}
	}
	return text
}

// refuser is a source of refusals, known by its text.
type refuser struct {
	text        *regexp.Regexp
	kind        string
	quota, down bool
}

// refusers are known by texts only: ValidatingAdmissionPolicies and MutatingAdmissionPolicies in
// k8s.io/apiserver pkg/admission/plugin/policy/validating/dispatcher.go, webhooks in
// pkg/admission/plugin/webhook/errors/statuserror.go and
// pkg/admission/plugin/webhook/validating/dispatcher.go, quotas in
// pkg/admission/plugin/resourcequota/controller.go, and the plugin against external addresses in
// k8s.io/kubernetes plugin/pkg/admission/network/denyserviceexternalips/admission.go.
func refusers() []refuser {
	return []refuser{
		{text: regexp.MustCompile(`(ValidatingAdmissionPolicy|MutatingAdmissionPolicy) '([^']+)'`)},
		{text: regexp.MustCompile(`failed calling webhook "([^"]+)"`), kind: "webhook", down: true},
		{text: regexp.MustCompile(`admission webhook "([^"]+)"`), kind: "webhook"},
		{text: regexp.MustCompile(`exceeded quota: ([^,]+),`), kind: "ResourceQuota", quota: true},
		{text: regexp.MustCompile(`Use of external IPs is denied by admission control`), kind: "the plugin DenyServiceExternalIPs"},
	}
}

// lacksRight recognizes the authorizer (k8s.io/apiserver
// pkg/endpoints/handlers/responsewriters/errors.go).
func lacksRight(err error) bool {
	return apierrors.IsForbidden(err) && regexp.MustCompile(`is forbidden: User "[^"]*" cannot `).MatchString(err.Error())
}

// Of is the refusal in an error; nil for errors that do not concern the write itself: a missing
// right, a conflict, a busy API server.
func Of(err error) *Refusal {
	var status apierrors.APIStatus
	if err == nil || !errors.As(err, &status) {
		return nil
	}
	text := err.Error()
	if lacksRight(err) {
		return nil
	}
	for _, j := range refusers() {
		if m := j.text.FindStringSubmatch(text); m != nil {
			return &Refusal{By: strings.TrimSpace(j.kind + " " + strings.Join(m[1:], " ")), Quota: j.quota, Down: j.down, Err: err}
		}
	}
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		return nil
	}
	return &Refusal{By: Unnamed, Err: err}
}

// Create tries to create an object, and returns a refusal apart from other errors. An object that
// exists counts as admitted.
func Create(ctx context.Context, c client.Client, o client.Object) (*Refusal, error) {
	return answer(c.Create(ctx, o, client.DryRunAll, client.FieldOwner(v1alpha1.FieldManager)))
}

// Patch tries to patch an object.
func Patch(ctx context.Context, c client.Client, o client.Object, p client.Patch) (*Refusal, error) {
	return answer(c.Patch(ctx, o, p, client.DryRunAll, client.FieldOwner(v1alpha1.FieldManager)))
}

func answer(err error) (*Refusal, error) {
	if refused := Of(err); refused != nil {
		return refused, nil
	}
	if apierrors.IsAlreadyExists(err) || apierrors.ReasonForError(err) == metav1.StatusReasonConflict {
		return nil, nil
	}
	return nil, err
}
