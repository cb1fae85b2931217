package podcidr

import (
	"errors"
	"testing"

	"github.com/replumb/replumb/internal/spec"
)

// FuzzParse gives any file: what is refused names a field and a hint, what is accepted has a target
// for each range.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"spec: {podCIDR: {to: [10.245.0.0/16]}}",
		"spec: {podCIDR: {from: [10.244.0.0/16], to: [10.245.0.0/24, 10.246.0.0/24], blockSize: 26}, batch: {size: 501}}",
		"spec: {podCIDR: {to: [\"fd00::/64\"], roll: {parallel: -1, timeout: -1s}, canary: {mode: x}, tunnels: {mode: Leave}}}",
		"spec: {podCIDR: {to: [10.245.0.1/16], nodes: {agents: [a]}, prepare: {deployments: [\"a/b/c\"]}}}",
	} {
		f.Add([]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\n" + seed + "\n"))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := spec.Parse(body)
		if err != nil {
			return
		}
		job, err := NewJob(Deps{}, m)
		var wrong *spec.Error
		if err != nil && (!errors.As(err, &wrong) || wrong.Field == "" || wrong.Hint == "") {
			t.Fatalf("error without field or hint: %v", err)
		}
		if err == nil && (len(job.Spec.To) == 0 || len(job.Spec.From) > 0 && len(job.Spec.From) != len(job.Spec.To)) {
			t.Fatalf("accepted %v for %v", job.Spec.To, job.Spec.From)
		}
	})
}
