// Package kubeadm changes single values in what kubeadm has written: manifests of static pods, the
// certificate of an API server, a kubelet's configuration, and its own ConfigMaps. All else in a
// file stays byte for byte, and a file that is not as kubeadm writes it is refused.
package kubeadm

import "fmt"

// UnusualError says that a file is not as kubeadm writes it, so that replumb leaves it to people.
type UnusualError struct {
	// File is what was read, by its path or as "ConfigMap NAME".
	File, Problem string
}

func (e *UnusualError) Error() string { return fmt.Sprintf("%s %s", e.File, e.Problem) }

func (*UnusualError) Advice() string {
	return "replumb changes files alone that are as kubeadm writes them: bring this one into that form, or leave the gate to people " +
		"(spec.serviceCIDR.manualGates; of spec.podCIDR.nodes leave gates out)"
}

func unusual(file, format string, args ...any) error {
	return &UnusualError{File: file, Problem: fmt.Sprintf(format, args...)}
}
