package migration

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/safety/gitops"
)

func generated(t *testing.T) gitops.Found {
	t.Helper()
	app := &unstructured.Unstructured{}
	err := yaml.Unmarshal([]byte(`
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {namespace: argocd, name: shop, ownerReferences: [{kind: ApplicationSet, name: all}]}
spec: {syncPolicy: {automated: {}}}
`), &app.Object)
	if err != nil {
		t.Fatal(err)
	}
	return gitops.Found{Objects: []*unstructured.Unstructured{app}}
}

// TestDeploymentChecks: each finds what it is about, and passes where that is not there.
func TestDeploymentChecks(t *testing.T) {
	const enforce, possible, off = v1alpha1.FreezeEnforce, v1alpha1.FreezeIfPossible, v1alpha1.FreezeDisabled
	spec := func(mode v1alpha1.FreezeMode, ops v1alpha1.GitOpsMode) *v1alpha1.DeploymentFreezeSpec {
		return &v1alpha1.DeploymentFreezeSpec{Mode: mode, GitOps: ops}
	}
	no, some := errors.New("no policies"), generated(t)
	for name, test := range map[string]struct {
		of   Deployments
		want string
	}{
		"well":                  {Deployments{Spec: spec(enforce, v1alpha1.GitOpsKeep)}, ""},
		"not possible":          {Deployments{Spec: spec(enforce, v1alpha1.GitOpsKeep), Problem: no}, "RP0101 no policies"},
		"if possible":           {Deployments{Spec: spec(possible, v1alpha1.GitOpsKeep), Problem: no}, ""},
		"another migration":     {Deployments{Spec: spec(enforce, v1alpha1.GitOpsKeep), Other: "first"}, "RP0101 migration first keeps"},
		"a kind not served":     {Deployments{Spec: spec(enforce, v1alpha1.GitOpsKeep), Unserved: []string{"a.b"}}, "RP0101 the cluster serves no a.b"},
		"kept":                  {Deployments{Spec: spec(enforce, v1alpha1.GitOpsKeep), GitOps: some}, "RP0102 Application argocd/shop"},
		"kept without a freeze": {Deployments{Spec: spec(off, v1alpha1.GitOpsKeep), GitOps: some}, ""},
		"not to be seen":        {Deployments{Spec: spec(enforce, v1alpha1.GitOpsKeep), Unread: no}, "RP0102 no policies"},
		"suspended":             {Deployments{Spec: spec(enforce, v1alpha1.GitOpsSuspend), GitOps: some}, "RP0103 applicationset argocd/all"},
		"suspended, not seen":   {Deployments{Spec: spec(enforce, v1alpha1.GitOpsSuspend), Unread: no}, "RP0103 no policies"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range findings.Run(DeploymentChecks(), test.of) {
				if f.Open() {
					got = append(got, f.Code+" "+f.Message)
				}
			}
			if text := strings.Join(got, "; "); test.want == "" && text != "" || !strings.HasPrefix(text, test.want) || len(got) > 1 {
				t.Errorf("found %q, want %q", text, test.want)
			}
		})
	}
}

// TestFreezeSteps: what is suspended and frozen before the first change, and lifted at the end;
// nothing, where nothing is asked for.
func TestFreezeSteps(t *testing.T) {
	both := &v1alpha1.DeploymentFreezeSpec{Mode: v1alpha1.FreezeEnforce, GitOps: v1alpha1.GitOpsSuspend}
	kept := &v1alpha1.DeploymentFreezeSpec{Mode: v1alpha1.FreezeIfPossible, GitOps: v1alpha1.GitOpsKeep}
	for name, test := range map[string]struct {
		of          Deployments
		own         bool
		first, last string
	}{
		"not asked for":     {Deployments{}, false, "", ""},
		"both":              {Deployments{Spec: both}, false, "freeze/gitops freeze/deploys", "tidy/freeze-deploys tidy/gitops"},
		"freeze":            {Deployments{Spec: kept}, false, "freeze/deploys", "tidy/freeze-deploys"},
		"not possible":      {Deployments{Spec: kept, Problem: errors.New("no")}, false, "", "tidy/freeze-deploys"},
		"not asked for now": {Deployments{Frozen: true, Suspended: true}, false, "tidy/gitops tidy/freeze-deploys", "tidy/freeze-deploys tidy/gitops"},
		"by the kind":       {Deployments{Spec: both}, true, "", "tidy/gitops"},
	} {
		t.Run(name, func(t *testing.T) {
			b := Base{Migration: &v1alpha1.Migration{}, Deployments: test.of}
			b.Deployments.OwnFreeze = test.own
			if got := ids(b.freezeDeployments()); got != test.first {
				t.Errorf("first %s, want %s", got, test.first)
			}
			if got := ids(b.Thaw()); got != test.last {
				t.Errorf("at the end %s, want %s", got, test.last)
			}
		})
	}
}

func ids(steps []engine.Step) string {
	var all []string
	for _, s := range steps {
		all = append(all, s.ID())
	}
	return strings.Join(all, " ")
}

// TestRolesFor: rights are asked for where they are used.
func TestRolesFor(t *testing.T) {
	for want, spec := range map[string]*v1alpha1.DeploymentFreezeSpec{
		"": nil,
		"replumb-freeze-view replumb-freeze-operate":                       {Mode: v1alpha1.FreezeEnforce, GitOps: v1alpha1.GitOpsKeep},
		"replumb-freeze-view":                                              {Mode: v1alpha1.FreezeIfPossible, GitOps: v1alpha1.GitOpsKeep},
		"replumb-freeze-view replumb-freeze-gitops":                        {Mode: v1alpha1.FreezeDisabled, GitOps: v1alpha1.GitOpsSuspend},
		"replumb-freeze-view replumb-freeze-operate replumb-freeze-gitops": {Mode: v1alpha1.FreezeEnforce, GitOps: v1alpha1.GitOpsSuspend},
	} {
		var got []string
		for _, r := range RolesFor(&v1alpha1.Migration{Spec: v1alpha1.MigrationSpec{DeploymentFreeze: spec}}) {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%+v takes %v", spec, got)
		}
	}
}
