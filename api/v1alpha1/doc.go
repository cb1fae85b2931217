// Package v1alpha1 is the API of replumb: the Migration resource and the labels and annotations that a migration leaves
// on the objects it touches, so that kubectl alone can explain what is going on.
//
// +kubebuilder:object:generate=true
// +groupName=replumb.dev
package v1alpha1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0 object paths=. crd output:crd:dir=../../deploy/crds
