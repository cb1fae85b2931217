package migration

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
)

// TestNamespacesAreTried: a policy that wants labels on namespaces refuses those of replumb, and is
// found before apply begins. One that is there already is not made.
func TestNamespacesAreTried(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	policy := apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "x",
		errors.New("ValidatingAdmissionPolicy 'owners' with binding 'owners' denied request: namespaces need the label owner"))
	named := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for name, tt := range map[string]struct {
		have []client.Object
		says error
		may  bool
		want []string
	}{
		"refused":      {nil, policy, true, []string{"RP0110", "RP0111"}},
		"there":        {[]client.Object{named(v1alpha1.SystemNamespace), named(v1alpha1.JournalNamespace)}, policy, true, nil},
		"one is there": {[]client.Object{named(v1alpha1.SystemNamespace)}, policy, true, []string{"RP0111"}},
		"admitted":     {nil, nil, true, nil},
		"no right":     {nil, policy, false, nil},
		"no answer":    {nil, apierrors.NewInternalError(errors.New("no")), true, []string{"RP0110", "RP0111"}},
	} {
		c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(tt.have...).Build(), interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return tt.says },
		})
		s := Subject{Migration: &v1alpha1.Migration{}, Access: []access.Answer{{Right: access.Grant("", "namespaces", "", "create")[0], Allowed: tt.may}}}
		refused, err := s.tryNamespaces(t.Context(), c)
		var got []string
		for _, f := range findings.Run(NamespaceChecks(), refused) {
			if f.Open() {
				got = append(got, f.Code)
			}
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
