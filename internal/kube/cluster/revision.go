package cluster

import apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

// Revision counts the changes of a definition's schema. Those from before they were counted have none, which is zero.
func Revision(crd *apiextensionsv1.CustomResourceDefinition) int { return revision(crd) }
