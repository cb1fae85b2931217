//go:build apiserver && long

package servicecidr

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
)

// definition makes sure that the cluster has this build's definition of Migration.
func (f *fixture) definition() {
	f.Helper()
	f.must((&engine.Runner{}).Run(f.Context(), single1(&migration.CRDStep{Cluster: f.job.Deps.Cluster})))
}

// TestDefinitionRefuses provokes each rule of the CustomResourceDefinition.
func TestDefinitionRefuses(t *testing.T) {
	f := setup(t)
	f.definition()
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.MigrationSpec)
		says   string
	}{
		{"no job", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR = nil }, "exactly one of the fields in [serviceCIDR podCIDR nodes mirror cni] must be set"},
		{"no target", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.To = []string{} }, "is empty; name the target range"},
		{"retire nothing", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.Mode = "Retire" }, "must name one range in mode Retire"},
		{"extend and empty", func(s *v1alpha1.MigrationSpec) {
			s.ServiceCIDR.Mode, s.ServiceCIDR.From = "Extend", []string{"10.96.0.0/16"}
		}, "contradicts mode Extend"},
		{"hook that does nothing", func(s *v1alpha1.MigrationSpec) {
			s.Hooks = []v1alpha1.Hook{{Name: "h", When: v1alpha1.BeforePhase}}
		}, "exactly one of the fields in [exec http] must be set"},
		{"too many targets", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.To = make([]string, 9) }, "at most 8 items"},
		{"too many sources", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.From = make([]string, 33) }, "at most 32 items"},
		{"unknown bridge", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.Bridge = "Rope" }, `Unsupported value: "Rope"`},
		{"unknown barrier", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.Barrier.Mode = "Hope" }, `Unsupported value: "Hope"`},
		{"unknown wish", func(s *v1alpha1.MigrationSpec) { s.Desired = "Better" }, `Unsupported value: "Better"`},
		{"negative batch", func(s *v1alpha1.MigrationSpec) { s.Batch.Size = -1 }, "greater than or equal to 1"},
		{"huge batch", func(s *v1alpha1.MigrationSpec) { s.Batch.Size = 501 }, "less than or equal to 500"},
	} {
		m := sample()
		tt.change(&m.Spec)
		if err := server.Create(t.Context(), m); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.says)
		}
	}
}

// TestDefinitionKeepsTheJob: what a Migration moves, and from where to where, cannot be changed;
// how it goes can.
func TestDefinitionKeepsTheJob(t *testing.T) {
	f := setup(t)
	f.definition()
	m := sample()
	f.must(server.Create(t.Context(), m))
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.MigrationSpec)
		says   string
	}{
		{"another target", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.To = []string{"172.25.0.0/16"} }, "cannot be changed"},
		{"another mode", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.Mode = v1alpha1.ModeExtend }, "cannot be changed"},
		{"another job", func(s *v1alpha1.MigrationSpec) {
			s.ServiceCIDR, s.PodCIDR = nil, &v1alpha1.PodCIDRSpec{To: []string{"10.245.0.0/16"}}
		}, "cannot be exchanged"},
		{"no job", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR = nil }, "exactly one of the fields"},
		{"another batch and wish", func(s *v1alpha1.MigrationSpec) { s.Batch.Size, s.Desired = 7, v1alpha1.DesiredApplied }, ""},
	} {
		changed := m.DeepCopy()
		tt.change(&changed.Spec)
		err := server.Update(t.Context(), changed)
		if tt.says == "" && err != nil || tt.says != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.says)
		}
	}
}

// TestApplyUpgradesTheDefinition: an older build's definition is one with other versions, such as
// one that lacks a field, or has a field or a rule that this build has not.
func TestApplyUpgradesTheDefinition(t *testing.T) {
	f := setup(t)
	f.definition()
	crd, err := server.CRD(t.Context())
	f.must(err)
	old := crd.DeepCopy()
	schema := old.Spec.Versions[0].Schema.OpenAPIV3Schema
	spec := schema.Properties["spec"]
	delete(spec.Properties, "batch")
	spec.Properties["former"] = spec.Properties["desired"]
	spec.Required = []string{"former"}
	schema.Properties["spec"] = spec
	old.Annotations = map[string]string{"example.com/owner": "someone"}
	f.must(server.Update(t.Context(), old))
	if current, err := server.CRDCurrent(t.Context()); err != nil || current {
		t.Fatalf("an older definition is taken for this build's: %v, %v", current, err)
	}
	p, err := f.job.Examine(t.Context())
	f.must(err)
	changes, err := p.Apply().Outstanding(t.Context()).Steps()[1].(engine.Previewer).Preview()
	f.must(err)
	if len(changes) != 1 || changes[0].Verb != "update" || !strings.HasPrefix(changes[0].Object, "CustomResourceDefinition ") {
		t.Errorf("the plan says %+v", changes)
	}
	f.service("cart", at("10.96.3.7"))
	f.apply()
	now, err := server.CRD(t.Context())
	f.must(err)
	want, err := cluster.Migration.CRD()
	f.must(err)
	if len(now.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties) !=
		len(want.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties) || now.UID != crd.UID {
		t.Errorf("is %+v", now.Spec.Versions)
	}
	if now.Annotations["example.com/owner"] != "someone" {
		t.Errorf("annotations of others are gone: %v", now.Annotations)
	}
}

// TestApplyTakesUpAMigrationCreatedByHand: what kubectl created has no defaults filled in, and
// cannot be given them.
func TestApplyTakesUpAMigrationCreatedByHand(t *testing.T) {
	f := setup(t)
	f.definition()
	m := sample()
	m.Spec.ServiceCIDR.Drain = nil
	f.must(server.Create(t.Context(), m))
	f.service("cart", at("10.96.3.7"))
	for range 2 {
		job, err := NewJob(f.job.Deps, m)
		f.must(err)
		f.job = job
		f.apply()
	}
	if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" {
		t.Errorf("at %s", is.Spec.ClusterIP)
	}
}

func TestPlanLeavesOutWhatIsThere(t *testing.T) {
	f := setup(t)
	f.definition()
	f.service("cart", at("10.96.3.7"))
	f.apply()
	f.service("late", at("10.96.3.8"))
	job, err := NewJob(f.job.Deps, sample())
	f.must(err)
	p, err := job.Look(t.Context())
	f.must(err)
	var ids []string
	for _, s := range p.Apply().Outstanding(t.Context()).Steps() {
		ids = append(ids, s.ID())
	}
	const want = "check secure/backup bridge/shop/late barrier/batch 1 of 1 hop/shop/late narrow/shop/late note/batch 1 of 1"
	if got := strings.Join(ids, " "); got != want {
		t.Errorf("plan has %s\nwant %s", got, want)
	}
}
