package apiserver

import (
	"testing"

	"k8s.io/apimachinery/pkg/version"
)

func TestDualWrite(t *testing.T) {
	const off, on = "A=true,DisableAllocatorDualWrite=true", "DisableAllocatorDualWrite=false"
	for name, tt := range map[string]struct {
		minor string
		gates []string
		want  DualWrite
	}{
		"1.36 unseen":              {"36", nil, DualWriteOff},
		"1.34":                     {"34+", []string{""}, DualWriteOff},
		"1.34 turned on":           {"34", []string{on}, DualWriteOn},
		"1.33 unseen":              {"33", nil, DualWriteUnknown},
		"1.33":                     {"33", []string{""}, DualWriteOn},
		"1.33 turned off":          {"33", []string{off, off}, DualWriteOff},
		"1.33 turned off on one":   {"33", []string{off, ""}, DualWriteOn},
		"1.33 turned off on other": {"33", []string{"", off}, DualWriteOn},
		"1.31 turned off":          {"31", []string{off}, DualWriteOff},
		"as /flagz shows it":       {"33", []string{"[DisableAllocatorDualWrite=true,ComponentFlagz=true]"}, DualWriteOff},
		"of a component":           {"33", []string{":DisableAllocatorDualWrite=true,kube:ComponentFlagz=true"}, DualWriteOff},
		"a version of a vendor":    {"x", []string{off}, DualWriteOff},
		"unknown":                  {"x", nil, DualWriteUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			if got := dualWrite(&version.Info{Major: "1", Minor: tt.minor}, tt.gates); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
