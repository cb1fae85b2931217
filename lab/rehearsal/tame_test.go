package rehearsal

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

const reaching = `
apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: move}
spec:
  serviceCIDR:
    to: [172.24.0.0/16]
    apiServers: ["192.0.2.11:6443"]
    etcd: {endpoints: ["https://192.0.2.11:2379"], caFile: /ca.crt, certFile: /c.crt, keyFile: /c.key}
    barrier: {mode: Agent}
    actions: {kubelets: {exec: {command: [./kubelets.sh]}}}
  hooks: [{name: h, when: BeforeBatch, exec: {command: [./hook.sh]}}]
  notify: [{urlFromEnv: SLACK_URL}]
  tierLookup: {exec: {command: [./lookup.sh]}}
  tiers: [{name: low, pause: 30m}, {name: high}]
  windows: [{start: "22:00", end: "04:00", timeZone: UTC}]
  batch: {size: 5, settle: 30s}
  image: registry.example/replumb:v1
  proof: {probes: [{name: p, kind: TCP, address: "192.0.2.9:80"}]}
`

func migrationOf(t *testing.T, text string) *v1alpha1.Migration {
	t.Helper()
	m := &v1alpha1.Migration{}
	if err := yaml.UnmarshalStrict([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestReachesNoOne: nothing that a Migration names outside the cluster is left in what is rehearsed.
func TestReachesNoOne(t *testing.T) {
	s, err := Tame(migrationOf(t, reaching), "http://127.0.0.1:2379")
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*v1alpha1.Migration{"given": s.Given, "rehearsed": s.Rehearsed} {
		body, err := yaml.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, gone := range []string{":2379\"", ".sh", "SLACK_URL", ".crt", "https://192.0.2.11"} {
			if strings.Contains(string(body), gone) {
				t.Errorf("%s still has %s:\n%s", name, gone, body)
			}
		}
		if !strings.Contains(string(body), "http://127.0.0.1:2379") {
			t.Errorf("%s has not the etcd of the rehearsal:\n%s", name, body)
		}
	}
	job := s.Rehearsed.Spec
	for what, wrong := range map[string]bool{
		"API servers to ask":      job.ServiceCIDR.APIServers != nil,
		"windows":                 job.Windows != nil,
		"a time to settle":        job.Batch.Settle.Duration != 0,
		"a time to drain":         job.ServiceCIDR.Drain.Duration != 0,
		"another size of batches": job.Batch.Size != 5,
		"a pause between tiers":   job.Tiers[0].Pause != nil,
		"agents":                  job.Proof.Agents != v1alpha1.AgentsDisabled,
		"probes":                  job.Proof.Probes != nil,
		"a follower":              job.ServiceCIDR.Follower != v1alpha1.FollowerDisabled,
		"another barrier":         job.ServiceCIDR.Barrier.Mode != v1alpha1.BarrierHealthCheck,
		"pods to refresh":         job.ServiceCIDR.Refresh.Mode != v1alpha1.RefreshReport,
	} {
		if wrong {
			t.Errorf("what is rehearsed has %s: %+v", what, job)
		}
	}
	if s.Given.Spec.Batch.Settle.Duration != 30*time.Second || len(s.Given.Spec.Windows) != 1 ||
		s.Given.Spec.ServiceCIDR.Refresh.Mode != "" {
		t.Errorf("the plan of the snapshot has lost its pace: %+v", s.Given.Spec)
	}
	if s.Settle != 30*time.Second || s.Pauses != 30*time.Minute {
		t.Errorf("waits %s and %s", s.Settle, s.Pauses)
	}
	for _, said := range []string{
		"hooks:", "notify:", "tierLookup:", "actions", "etcd:", "windows:", "batch.settle", "drain", "pauses", "agents", "restarts:", "apiServers:",
	} {
		if !slices.ContainsFunc(s.LeftOut, func(l string) bool { return strings.HasPrefix(l, said) }) {
			t.Errorf("%q is not said in %q", said, s.LeftOut)
		}
	}
}

// TestSaysNothingOfWhatIsNotThere is the control of what is said to be left out.
func TestSaysNothingOfWhatIsNotThere(t *testing.T) {
	s, err := Tame(migrationOf(t, `
metadata: {name: move}
spec:
  serviceCIDR: {to: [172.24.0.0/16], refresh: {mode: Report}, follower: Disabled, drain: 0s}
  batch: {settle: 0s}
  proof: {agents: Disabled}
`), "")
	if err != nil || len(s.LeftOut) > 0 {
		t.Errorf("%q, %v", s.LeftOut, err)
	}
}

func TestRefusesOtherKinds(t *testing.T) {
	for text, want := range map[string]string{
		`{spec: {podCIDR: {}}}`: "spec.podCIDR cannot be rehearsed without nodes",
		`{spec: {nodes: {}}}`:   "spec.nodes cannot be rehearsed without nodes",
		`{spec: {mirror: {}}}`:  "spec.mirror cannot be rehearsed without nodes",
		`{spec: {cni: {}}}`:     "spec.cni cannot be rehearsed without nodes",
		`{spec: {}}`:            "names no job",
	} {
		_, err := Tame(migrationOf(t, text), "")
		var coder fault.Coder
		if err == nil || !strings.Contains(err.Error(), want) || fault.Advice(err) == "" || !errors.As(err, &coder) ||
			coder.ExitCode() != fault.ExitUsage {
			t.Errorf("%s: %v, want %q with a hint, and the code of a wrong command line", text, err, want)
		}
	}
}
