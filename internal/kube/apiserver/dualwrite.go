package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/version"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
)

// DualWrite tells whether API servers write each address twice: as an IPAddress, and into the
// bitmap of before 1.33 for the range of their flag.
type DualWrite string

// Answers about it.
const (
	DualWriteOff     DualWrite = "off"
	DualWriteOn      DualWrite = "on"
	DualWriteUnknown DualWrite = "unknown"
)

// dualWriteGate is on by default from 1.34, and fixed from 1.35 (k8s.io/kubernetes
// pkg/features/kube_features.go).
const (
	dualWriteGate   = "DisableAllocatorDualWrite"
	dualWriteEndsIn = 34
	dualWriteGoneIn = 35
	gatesFlag       = "feature-gates"
)

// SeeDualWrite goes by the version, and by flags from /flagz or API server pods.
func SeeDualWrite(ctx context.Context, c *cluster.Cluster, v *version.Info) (DualWrite, error) {
	if minorOf(v) >= dualWriteGoneIn {
		return DualWriteOff, nil
	}
	body, kind, err := Flags(ctx, c)
	if err == nil {
		if value, found, err := flagIn(kind, body, gatesFlag); err == nil && found {
			return dualWrite(v, []string{value}), nil
		}
	}
	if ctx.Err() != nil {
		return DualWriteUnknown, ctx.Err()
	}
	pods, err := controlplane.APIServer.Pods(ctx, c)
	if err != nil && !apierrors.IsForbidden(err) {
		return DualWriteUnknown, fmt.Errorf("listing the pods of API servers: %w", err)
	}
	var gates []string
	for i := range pods {
		if p := &pods[i]; controlplane.APIServer.IsStatic(p) {
			value, _ := commandFlag(p, gatesFlag)
			gates = append(gates, value)
		}
	}
	return dualWrite(v, gates), nil
}

func dualWrite(v *version.Info, gates []string) DualWrite {
	byDefault := DualWriteOn
	switch minor := minorOf(v); {
	case minor < 0:
		byDefault = DualWriteUnknown
	case minor >= dualWriteEndsIn:
		byDefault = DualWriteOff
	}
	if len(gates) == 0 && byDefault == DualWriteOn {
		return DualWriteUnknown // someone may have turned it off
	}
	all := byDefault
	for i, g := range gates {
		one := byDefault
		if disabled, set := gate(g, dualWriteGate); set && disabled {
			one = DualWriteOff
		} else if set {
			one = DualWriteOn
		}
		if i == 0 || one != DualWriteOff {
			all = one
		}
	}
	return all
}

func minorOf(v *version.Info) int {
	minor, err := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if err != nil || v.Major != "1" {
		return -1
	}
	return minor
}

// gate reads a feature gate from --feature-gates: NAME=true or COMPONENT:NAME=true, which /flagz
// may show in brackets.
func gate(value, name string) (on, set bool) {
	for _, part := range strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(`,:[]" `, r) }) {
		if key, is, ok := strings.Cut(part, "="); ok && key == name {
			on, set = is == "true", true
		}
	}
	return on, set
}
