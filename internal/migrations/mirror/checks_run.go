package mirror

import (
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

func checkRights(in Input) []findings.Result {
	out := migration.Denied(in.Access)
	for _, r := range migration.Denied(in.TargetAccess) {
		r.Message = "in the target: " + r.Message
		out = append(out, r)
	}
	return out
}

func checkIdentity(in Input) []findings.Result {
	s := in.Inventory
	switch {
	case s.Source.UID == s.Target.UID:
		return []findings.Result{findings.Failed("", "spec.mirror.target leads to the source itself")}
	case s.Remembered != nil && s.Remembered.TargetUID != "" && s.Remembered.TargetUID != s.Target.UID:
		return []findings.Result{findings.Failed("", "spec.mirror.target leads to another cluster than when the migration began")}
	case s.Remembered != nil && s.Remembered.SourceUID != "" && s.Remembered.SourceUID != s.Source.UID:
		return []findings.Result{findings.Failed("", "this is another cluster than the one that the migration began in")}
	}
	return nil
}

func checkVersions(in Input) []findings.Result {
	from, to := in.Inventory.Source.Version, in.Inventory.Target.Version
	if from == nil || to == nil {
		return []findings.Result{findings.NotKnown("", "a version is not known")}
	}
	if from.Major == to.Major && strings.TrimSuffix(from.Minor, "+") == strings.TrimSuffix(to.Minor, "+") {
		return nil
	}
	return []findings.Result{findings.Failed("", "the source has %s, the target %s", from.GitVersion, to.GitVersion)}
}

func checkServed(in Input) []findings.Result {
	var out []findings.Result
	for _, m := range in.Inventory.Objects.Missing {
		out = append(out, findings.Failed(m.Resource, "the source has %d %s to copy", m.Copied, m.Resource))
	}
	return out
}

func checkRoom(in Input) []findings.Result {
	if in.Inventory.Serving() != v1alpha1.ServingSource {
		return findings.Skip("names lead to the target by now")
	}
	var out []findings.Result
	for _, s := range shortages(in.Inventory.Moving, in.Inventory.Nodes, in.Inventory.There) {
		out = append(out, findings.Failed("", "%s", s))
	}
	return out
}

func checkBlind(in Input) []findings.Result {
	var out []findings.Result
	for _, b := range in.Inventory.Blind {
		out = append(out, findings.Failed(b, "no one answers for %s in the target", b))
	}
	return out
}

func checkFreeze(in Input) []findings.Result {
	if freeze := in.Inventory.Spec.Common.Freeze; freeze != v1alpha1.FreezeEnforce {
		return findings.Skip("spec.freeze is %s", freeze)
	}
	if in.FreezeProblem == nil {
		return nil
	}
	return []findings.Result{findings.Failed("", "%v", in.FreezeProblem)}
}

func checkFreezeKinds(in Input) []findings.Result {
	var out []findings.Result
	for _, kind := range in.Inventory.Unfreezable {
		out = append(out, findings.Failed(kind, "the source serves no %s in namespaces", kind))
	}
	return out
}

func checkConflicts(in Input) []findings.Result {
	if existing := in.Inventory.Spec.Copy.Existing; existing != v1alpha1.ExistingRefuse {
		return findings.Skip("spec.mirror.copy.existing is %s", existing)
	}
	var out []findings.Result
	for _, c := range in.Inventory.Objects.Conflicts {
		out = append(out, findings.Failed(c.Ref.String(), "%s %s, and is no copy of this migration", c.Ref, c.What))
	}
	return out
}

func checkClaims(in Input) []findings.Result {
	if volumes := in.Inventory.Spec.Copy.Volumes; volumes != v1alpha1.VolumesRefuse {
		return findings.Skip("spec.mirror.copy.volumes is %s", volumes)
	}
	var out []findings.Result
	for _, c := range in.Inventory.Objects.Claims {
		out = append(out, findings.Failed(c.String(), "what is in %s does not come along", c))
	}
	return out
}

func checkClasses(in Input) []findings.Result {
	var out []findings.Result
	for _, c := range in.Inventory.Claims {
		if c.Class != "" && !slices.Contains(in.Inventory.Classes, c.Class) {
			out = append(out, findings.Failed(c.Object, "the target has no storage class %s", c.Class))
		}
	}
	return out
}

func checkVolumes(in Input) []findings.Result {
	var out []findings.Result
	for _, c := range in.Inventory.Claims {
		if c.Unprovided != "" {
			out = append(out, findings.Failed(c.Object, "%s %s, and the target has no volume for it", c.Object, c.Unprovided))
		}
	}
	return out
}

func checkPorts(in Input) []findings.Result {
	var out []findings.Result
	for _, t := range in.Inventory.Taken {
		out = append(out, findings.Failed("services "+t.Service, "node port %d of %s is %s's in the target", t.Port, t.Service, t.Owner))
	}
	return out
}

func checkQuotas(in Input) []findings.Result {
	var out []findings.Result
	for _, text := range quotaProblems(in.Inventory) {
		out = append(out, findings.Failed("", "%s", text))
	}
	return out
}

func checkHostPorts(in Input) []findings.Result {
	var out []findings.Result
	for _, p := range hostPortProblems(in.Inventory) {
		out = append(out, findings.Failed(p.object, "%s", p.text))
	}
	return out
}

func checkDefinitions(in Input) []findings.Result {
	var out []findings.Result
	for _, n := range in.Inventory.Objects.Definitions {
		out = append(out, findings.Failed(n.Ref.String(), "%s %s", n.Ref, n.What))
	}
	return out
}

func checkTransforms(in Input) []findings.Result {
	var out []findings.Result
	for _, e := range in.Inventory.Objects.Errors {
		out = append(out, findings.Failed(e.Ref.String(), "%s: %s", e.Ref, e.Problem))
	}
	return out
}

func checkCloud(in Input) []findings.Result {
	var out []findings.Result
	for _, b := range in.Inventory.Objects.Cloud {
		out = append(out, findings.Failed(b.Ref.String(), "%s %s", b.Ref, b.What))
	}
	return out
}

func checkSecrets(in Input) []findings.Result {
	var out []findings.Result
	for _, c := range in.Inventory.Objects.Secrets {
		out = append(out,
			findings.Failed(c.What, "%s copied: %s; one is %s", english.Plural(c.Count, "Secret is", "Secrets are"), c.What, c.Example))
	}
	return out
}

func checkNetworks(in Input) []findings.Result {
	var out []findings.Result
	for _, n := range in.Inventory.Networks {
		if in.Inventory.Serving() == v1alpha1.ServingSource {
			out = append(out, findings.Failed("", "the network %s of the source is not copied", n))
		}
	}
	return out
}

func checkTwice(in Input) []findings.Result {
	var out []findings.Result
	for _, t := range in.Inventory.Objects.Twice {
		out = append(out, findings.Failed(t.Ref.String(), "%s %s", t.Ref, t.What))
	}
	for _, w := range in.Inventory.Objects.Beside {
		out = append(out, findings.Failed(w.Resource+" "+w.Namespace, "%s of namespace %s would run in both clusters: %s",
			w.Resource, w.Namespace, strings.Join(w.Names, ", ")))
	}
	return out
}

// reviewed is the answer of users, the value of v1alpha1.AnnotationSingletons.
const reviewed = "Reviewed"

func checkReviewed(in Input) []findings.Result {
	beside := 0
	for _, w := range in.Inventory.Objects.Beside {
		beside += len(w.Names)
	}
	twice := len(slices.DeleteFunc(slices.Clone(in.Inventory.Objects.Twice), func(n objects.Note) bool { return n.Ref.Resource == "jobs.batch" }))
	if in.Reviewed || twice+beside == 0 {
		return nil
	}
	return []findings.Result{findings.Failed("", "%s that RP4105 names would run in both clusters, and no one has said that he has looked at them",
		english.Plural(twice+beside, "workload", ""))}
}

func (in Input) leads() bool {
	return len(in.Inventory.Names)+len(in.Inventory.Awaited)+len(in.Inventory.Problems) > 0
}

func checkNames(in Input) []findings.Result {
	if !in.leads() {
		return findings.Skip("no name is to lead to the target (RP4205)")
	}
	var out []findings.Result
	for _, p := range in.Inventory.Problems {
		if !p.Warning {
			out = append(out, findings.Failed(p.Name, "%s %s", p.Name, withHint(p.Problem, p.Hint)))
		}
	}
	return out
}

func withHint(problem, hint string) string {
	if hint == "" {
		return problem
	}
	return problem + "; " + hint
}

func checkRecords(in Input) []findings.Result {
	if !in.leads() {
		return findings.Skip("no name is to lead to the target (RP4205)")
	}
	var out []findings.Result
	for _, name := range slices.Sorted(maps.Keys(in.RecordProblems)) {
		out = append(out, findings.Failed(name, "%s", in.RecordProblems[name]))
	}
	return out
}

func checkSigned(in Input) []findings.Result {
	if in.Inventory.Spec.Redirect.Provider == nil {
		return findings.Skip("no provider of DNS is named")
	}
	if problem := dnsrecords.Unsigned(in.Inventory.Spec.Redirect.Provider); problem != "" {
		return []findings.Result{findings.Failed("", "%s", problem)}
	}
	return nil
}

func checkCovered(in Input) []findings.Result {
	var out []findings.Result
	for _, u := range in.Inventory.Uncovered {
		out = append(out,
			findings.Failed("Secret "+u.Secret, "its certificate is not good for %s, and cert-manager does not issue it", u.Alias))
	}
	return out
}

func checkUnprobed(in Input) []findings.Result {
	var out []findings.Result
	for _, p := range in.Inventory.Problems {
		if p.Warning {
			out = append(out, findings.Failed(p.Name, "%s %s", p.Name, withHint(p.Problem, p.Hint)))
		}
	}
	if in.Inventory.Spec.Redirect.Probe.Mode == v1alpha1.ProbeOff {
		out = append(out, findings.Failed("", "spec.mirror.redirect.probe.mode is Off"))
	}
	return out
}

func checkAny(in Input) []findings.Result {
	if in.leads() {
		return nil
	}
	return []findings.Result{
		findings.Failed("", "no name leads anywhere: neither are any listed nor found in %s", "Ingresses, gateways and Services"),
	}
}
