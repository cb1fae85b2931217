//go:build imports

// Package kubeadm pins the installer: of what it is built from nothing is here, and go mod tidy keeps what its program needs.
package kubeadm

import (
	_ "k8s.io/kubernetes/cmd/kubeadm/app"
)
