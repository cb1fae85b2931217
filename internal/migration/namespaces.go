package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/admission"
)

// RefusedNamespaces says by name why those of replumb's own are refused that are to be made. An
// error that is no refusal stands in the place of an answer.
type RefusedNamespaces map[string]error

const makeYourself = "make it yourself, with the labels that your policy wants: kubectl create namespace "

// namespaces is the group of checks of replumb's own.
const namespaces = "Namespaces"

// NamespaceChecks are about replumb's own namespaces, for all kinds.
func NamespaceChecks() []findings.Check[RefusedNamespaces] {
	return findings.Group(namespaces, []findings.Check[RefusedNamespaces]{
		{
			Code: "RP0110", Severity: findings.Blocking, Run: refusedNamespace(v1alpha1.SystemNamespace),
			Claim: "admission accepts the namespace " + v1alpha1.SystemNamespace,
			Why:   "replumb keeps backups there, and runs its pods; apply makes it before anything else",
			Fix:   makeYourself + v1alpha1.SystemNamespace,
		},
		{
			Code: "RP0111", Severity: findings.Warning, Run: refusedNamespace(v1alpha1.JournalNamespace),
			Claim: "admission accepts the namespace " + v1alpha1.JournalNamespace,
			Why:   "the journals of runs are kept there, of which reports are made afterwards; without it runs go on and keep none",
			Fix:   makeYourself + v1alpha1.JournalNamespace,
		},
	}...)
}

func refusedNamespace(name string) func(RefusedNamespaces) []findings.Result {
	return func(all RefusedNamespaces) []findings.Result {
		by := all[name]
		switch {
		case by == nil:
			return nil
		case errors.As(by, new(*admission.Refusal)):
			return []findings.Result{findings.Failed("Namespace "+name, "namespace %s is refused: %v", name, by)}
		}
		return []findings.Result{findings.NotKnown("Namespace "+name, "namespace %s was not tried: %v", name, by)}
	}
}

// tryNamespaces asks by dry runs. Admission judges what exists as well, so a refusal of such a one
// says nothing.
func (s *Subject) tryNamespaces(ctx context.Context, c client.Client) (RefusedNamespaces, error) {
	mayFound := func(a access.Answer) bool {
		return a.Allowed && a.Right.Verb == "create" && a.Right.Group == "" && a.Right.Resource == "namespaces"
	}
	if !slices.ContainsFunc(s.Access, mayFound) { // that right is asked for where there is a namespace to make
		return nil, nil
	}
	all := RefusedNamespaces{}
	for name, labels := range map[string]map[string]string{
		v1alpha1.SystemNamespace:  {v1alpha1.LabelMigration: s.Migration.Name},
		v1alpha1.JournalNamespace: {v1alpha1.LabelRole: v1alpha1.RoleJournal},
	} {
		refused, err := admission.Create(ctx, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
		switch {
		case apierrors.IsForbidden(err) || err == nil && refused == nil: // the rights check says so
			continue
		case err != nil && !s.Tells(err):
			return nil, fmt.Errorf("trying namespace %s: %w", name, err)
		case err != nil:
			all[name] = err
			continue
		}
		if err := c.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{}); apierrors.IsNotFound(err) {
			all[name] = refused
		}
	}
	return all, nil
}
