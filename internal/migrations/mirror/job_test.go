//go:build apiserver && programs

package mirror

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

func TestThereAndBackAndThere(t *testing.T) {
	f := setup(t)
	f.must(f.run(0, f.apply))
	f.must(f.run(0, f.rollback))
	f.leads(sourceAt, 3*time.Second)
	f.runsIn(f.source, f.target)
	if st := f.status(); st.Phase != v1alpha1.PhaseRolledBack {
		t.Errorf("status after rollback: %+v", st)
	}
	settings := get(f, f.source, &corev1.ConfigMap{}, "settings")
	settings.Data["a"] = "changed meanwhile"
	f.must(f.source.Update(t.Context(), settings))
	f.must(f.run(0, f.apply))
	f.leads(targetAt, time.Second)
	f.runsIn(f.target, f.source)
	if got := get(f, f.target, &corev1.ConfigMap{}, "settings").Data["a"]; got != "changed meanwhile" {
		t.Errorf("the copy was not brought up to date: %s", got)
	}
	f.must(f.run(0, f.finish))
	f.leads(sourceAt, 3*time.Second)
	roles, err := f.job.Roles(t.Context())
	f.must(err)
	f.requests.Took(t, roles, unused(roles))
}

// unused are the rights that no request takes in these tests, with what would.
func unused(roles cluster.Roles) map[string]string {
	const (
		certificates = "certificates that get names of the mirror, with backups"
		services     = "unfreeze, where a migration of Services froze them"
		another      = "the freeze is another migration's"
	)
	all := map[string]string{
		"create configmaps in replumb-system":                                                          certificates,
		"delete configmaps in replumb-system":                                                          certificates,
		"patch certificates.cert-manager.io":                                                           certificates,
		"patch ingresses.networking.k8s.io":                                                            certificates,
		"patch statefulsets.apps":                                                                      "StatefulSets that must not run twice",
		"get validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze":                  services,
		"get validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze":            services,
		"delete validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze":               services,
		"delete validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze":         services,
		"update validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze-deploys":       another,
		"update validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze-deploys": another,
	}
	for _, r := range roles.Rights() {
		if r.Verb == "get" && r.Name == "" && r.URL == "" {
			all[r.String()] = "an object whose copy was refused is read again, and Secrets that the Migration names"
		}
	}
	return all
}

// TestReaderSees: who may only look gets every finding, and what is missing to operate is one.
func TestReaderSees(t *testing.T) {
	f := setup(t)
	roles, err := f.job.Roles(t.Context())
	f.must(err)
	f.operator = migrationtest.Reader(t, f.source, roles)
	f.with(f.job.Migration)
	p, err := f.job.Look(t.Context())
	f.must(err)
	if !migrationtest.Says(p.Findings, "RP4001", "missing permission: ") {
		t.Errorf("findings: %+v", p.Findings)
	}
}

// TestUsualKinds: the roles in deploy have every kind of Kubernetes' own that a mirror reads.
func TestUsualKinds(t *testing.T) {
	f := setup(t)
	rules, err := objectsync.NewRules(objectsync.Options{Migration: "m"})
	f.must(err)
	source, err := objectsync.Connect(f.source.Cluster)
	f.must(err)
	kinds, err := source.Reads(rules)
	f.must(err)
	for _, k := range kinds {
		own := !strings.Contains(k.Group, ".") || strings.HasSuffix(k.Group, ".k8s.io")
		if own && !slices.Contains(Usual(), k) {
			t.Errorf("%s is read, and not usual", k)
		}
	}
	for _, k := range Usual() {
		if !slices.Contains(kinds, k) {
			t.Errorf("%s is usual, and not read", k)
		}
	}
}

// TestNotIntoItself refuses a target that is the source.
func TestNotIntoItself(t *testing.T) {
	f := setup(t)
	f.target = f.source
	err := f.run(0, f.apply)
	var blocked *findings.BlockedError
	if !errors.As(err, &blocked) || !slices.ContainsFunc(blocked.Findings, func(c findings.Finding) bool { return c.Code == "RP4002" }) {
		t.Fatalf("got %v", err)
	}
}
