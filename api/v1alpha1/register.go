package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of everything in this package.
//
//nolint:gochecknoglobals // a constant in all but its type; API packages have it under this name
var GroupVersion = schema.GroupVersion{Group: "replumb.dev", Version: "v1alpha1"}

// AddToScheme registers the types of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Migration{}, &MigrationList{}, &NodeReport{}, &NodeReportList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
