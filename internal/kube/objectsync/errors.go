package objectsync

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// TroubleReason says what kind of trouble there is with an object.
type TroubleReason string

// The reasons.
const (
	// ReasonExists: the target has another object of that name, which replumb did not make.
	ReasonExists TroubleReason = "Exists"
	// ReasonConflict: someone else has set fields of the copy.
	ReasonConflict TroubleReason = "Conflict"
	ReasonQuota    TroubleReason = "Quota"
	// ReasonWebhook: a webhook refused, or could not be asked.
	ReasonWebhook TroubleReason = "Webhook"
	// ReasonPolicy: an admission policy refused.
	ReasonPolicy    TroubleReason = "Policy"
	ReasonInvalid   TroubleReason = "Invalid"
	ReasonForbidden TroubleReason = "Forbidden"
	// ReasonNotServed: the target does not know the kind, or the namespace.
	ReasonNotServed TroubleReason = "NotServed"
	// ReasonTransform: a transform cannot be done to it.
	ReasonTransform   TroubleReason = "Transform"
	ReasonUnavailable TroubleReason = "Unavailable"
)

// ObjectError is what went wrong with one object.
type ObjectError struct {
	Ref     objects.Ref
	Verb    string
	Reason  TroubleReason
	Problem string
	Hint    string
	// Err is the cause; nil for Secrets, whose errors may quote values.
	Err error

	again bool
}

func (e *ObjectError) Error() string { return fmt.Sprintf("%s %s: %s", e.Verb, e.Ref, e.Problem) }

func (e *ObjectError) Advice() string { return e.Hint }

func (e *ObjectError) Unwrap() error { return e.Err }

// trouble puts an API server's error in words. It is nil if the context ended.
func trouble(ref objects.Ref, verb string, err error) *ObjectError {
	e := &ObjectError{Ref: ref, Verb: verb, Reason: ReasonUnavailable, Problem: err.Error(), Err: err}
	classify(e, err)
	if ref.Resource == "secrets" {
		e.Err, e.Problem = nil, withoutValues(e, err)
	}
	return e
}

// Unfit says that a transform cannot be done to an object.
func Unfit(ref objects.Ref, err error) *ObjectError {
	return &ObjectError{
		Ref: ref, Verb: "copying", Reason: ReasonTransform, Problem: err.Error(), Err: err,
		Hint: "correct the transform, or have it choose fewer objects",
	}
}

func classify(e *ObjectError, err error) {
	text := err.Error()
	switch {
	case apierrors.IsConflict(err):
		e.Reason, e.Hint = ReasonConflict, "have the other one stop, or use spec.mirror.copy.existing: Overwrite"
	case strings.Contains(text, "exceeded quota"), strings.Contains(text, "status unknown for quota"):
		e.Reason, e.Hint = ReasonQuota, "raise the quota in the target"
		e.again = strings.Contains(text, "status unknown")
	case quoted(text, `admission webhook `) != "":
		e.Reason = ReasonWebhook
		e.Hint = fmt.Sprintf("look why webhook %s of the target refuses it", quoted(text, `admission webhook `))
	case quoted(text, `failed calling webhook `) != "":
		e.Reason, e.again = ReasonWebhook, true
		e.Hint = fmt.Sprintf("see that what answers for webhook %s runs in the target", quoted(text, `failed calling webhook `))
	case strings.Contains(text, "ValidatingAdmissionPolicy"):
		e.Reason, e.Hint = ReasonPolicy, "see what the target's policy asks for"
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		e.Reason, e.again, e.Hint = ReasonForbidden, true, "the namespace is being deleted in the target: wait until it is gone"
	case strings.Contains(text, "provided port is already allocated"):
		e.Reason, e.Hint = ReasonInvalid, "free the node port in the target, or give copies others: spec.mirror.copy.nodePorts: Strip"
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		e.Reason, e.Hint = ReasonInvalid, "change it on the way, by spec.mirror.copy.transforms"
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		e.Reason, e.Hint = ReasonForbidden, "give the user of the target's kubeconfig this right"
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		e.Reason, e.again, e.Hint = ReasonNotServed, true, "see that the target serves the kind, and has the namespace"
	default:
		e.again = passes(err)
	}
}

func passes(err error) bool {
	var network net.Error
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsUnexpectedServerError(err) ||
		errors.As(err, &network) || utilnet.IsConnectionRefused(err) || utilnet.IsProbableEOF(err) ||
		errors.Is(err, context.DeadlineExceeded)
}

// quoted is what stands in quotes behind some words; with its quotes.
func quoted(text, words string) string {
	found := regexp.MustCompile(regexp.QuoteMeta(words) + `("[^"]*")`).FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	return found[1]
}

// withoutValues says what is wrong with a Secret by names alone: messages may quote what is in it.
func withoutValues(e *ObjectError, err error) string {
	text := fmt.Sprintf("the API server refuses it (%s)", e.Reason)
	if e.again {
		text = fmt.Sprintf("the API server cannot take it now (%s)", e.Reason)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return text
	}
	var fields []string
	for _, c := range status.Status().Details.Causes {
		if c.Type == metav1.CauseTypeFieldManagerConflict {
			fields = append(fields, "someone else has set "+fieldName(c.Field))
		} else if c.Field != "" {
			fields = append(fields, fieldName(c.Field)+" is wrong")
		}
	}
	if len(fields) == 0 {
		return text
	}
	return text + ": " + strings.Join(fields, ", ")
}

// fieldName leaves out what could be a value: keys of Secrets are names of at most 253 characters.
func fieldName(field string) string {
	const longest = 280
	if len(field) > longest {
		return field[:longest]
	}
	return field
}
