// Package controllers stands in for the controllers of the multi-cluster Services API, a module that not every module proxy serves. All
// that Cilium has of it is the name of an annotation, of clusters in a mesh, which labs have none of.
package controllers

// DerivedServiceAnnotation names the Service that stands for one of another cluster.
const DerivedServiceAnnotation = "multicluster.kubernetes.io/derived-service"
