package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Effect is what a field has replumb do outside of the Migration's cluster.
type Effect string

const (
	// Runs a program on the machine where replumb runs.
	Runs Effect = "runs"
	// Connects to an address, from where replumb runs.
	Connects Effect = "connects to"
	// Reads a file, or the environment, of the machine where replumb runs.
	Reads Effect = "reads"
	// Writes a file there.
	Writes Effect = "writes"
	// Leads names in DNS elsewhere, with credentials of the operator.
	Leads Effect = "changes DNS by"
	// Copies objects to another cluster, where replumb has the rights of an administrator.
	Copies Effect = "copies to the target by"
	// Deploys an image to nodes, with far-reaching rights on them.
	Deploys Effect = "runs on nodes"
)

// Call is a setting with an effect outside of the cluster. Writers of Migrations must not command
// the operator's machine, so such settings need a file or consent.
type Call struct {
	// Field is its path, such as spec.hooks[0].exec.command.
	Field  string
	Effect Effect
	Value  any
}

// String is one line for people. Of a URL it has no more than scheme and host.
func (c Call) String() string {
	return fmt.Sprintf("%s %s %s", c.Field, c.Effect, c.shown())
}

func (c Call) shown() string {
	text, ok := c.Value.(string)
	if !ok || !strings.HasSuffix(c.Field, ".url") {
		return quoted(c.Value)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "(not shown)"
	}
	return quoted(u.Scheme + "://" + u.Host + "/...")
}

// reach is a field, without list indices, whose whole content has an effect.
type reach struct {
	field  string
	effect Effect
}

// reaches are all such fields. Every other one is in testdata/near.txt, and a test fails for a
// field in neither.
func reaches() []reach {
	all := []reach{
		{"spec.notify[].url", Connects},
		{"spec.notify[].urlFromEnv", Reads},
		{"spec.hooks[].when", Runs},
		{"spec.hooks[].of", Runs},
		{"spec.serviceCIDR.apiServers", Connects},
		{"spec.serviceCIDR.gates", Deploys},
		{"spec.serviceCIDR.manualGates", Deploys},
		{"spec.podCIDR.nodes.gates", Deploys},
		{"spec.serviceCIDR.etcd.source", Deploys},
		{"spec.serviceCIDR.etcd.endpoints", Connects},
		{"spec.serviceCIDR.etcd.caFile", Reads},
		{"spec.serviceCIDR.etcd.certFile", Reads},
		{"spec.serviceCIDR.etcd.keyFile", Reads},
		{"spec.serviceCIDR.etcd.secret", Connects},
		{"spec.nodes.ingress.targets", Connects},
		{"spec.nodes.controlPlane.etcd.endpoints", Connects},
		{"spec.nodes.controlPlane.etcd.caFile", Reads},
		{"spec.nodes.controlPlane.etcd.certFile", Reads},
		{"spec.nodes.controlPlane.etcd.keyFile", Reads},
		{"spec.nodes.controlPlane.etcd.snapshotFile", Writes},
		{"spec.nodes.controlPlane.etcdEvents.endpoints", Connects},
		{"spec.nodes.controlPlane.etcdEvents.caFile", Reads},
		{"spec.nodes.controlPlane.etcdEvents.certFile", Reads},
		{"spec.nodes.controlPlane.etcdEvents.keyFile", Reads},
		{"spec.nodes.controlPlane.etcdEvents.snapshotFile", Writes},
		{"spec.cni.manifests", Reads},
		{"spec.mirror.target.context", Connects},
		{"spec.image", Deploys},
		{"spec.mirror.target.secret", Connects},
		{"spec.mirror.copy.existing", Copies},
		{"spec.mirror.copy.kinds", Copies},
		{"spec.mirror.copy.namespaces", Copies},
		{"spec.mirror.copy.registries", Copies},
		{"spec.mirror.copy.selector", Copies},
		{"spec.mirror.copy.transforms", Copies},
		{"spec.mirror.redirect.names", Leads},
		{"spec.mirror.redirect.from", Leads},
		{"spec.mirror.redirect.to", Leads},
		{"spec.mirror.redirect.probe", Connects},
		{"spec.mirror.redirect.owners", Leads},
		{"spec.mirror.redirect.txtPrefix", Leads},
		{"spec.mirror.redirect.txtSuffix", Leads},
		{"spec.mirror.redirect.txtWildcard", Leads},
	}
	for _, action := range []string{
		"spec.tierLookup", "spec.hooks[]", "spec.cni.nodes.replace", "spec.mirror.copy.volumeAction", "spec.mirror.redirect.quiet",
		"spec.nodes.join.provision", "spec.nodes.terminate.action", "spec.nodes.controlPlane.provision", "spec.nodes.controlPlane.retire",
		"spec.nodes.controlPlane.terminate", "spec.serviceCIDR.actions.certificates", "spec.serviceCIDR.actions.kubelets",
		"spec.serviceCIDR.actions.apiServers", "spec.kubeProxy.program.restart",
	} {
		all = append(all, reach{action + ".exec", Runs}, reach{action + ".http.url", Connects}, reach{action + ".http.urlFromEnv", Reads})
	}
	for _, records := range []string{"spec.nodes.records[]", "spec.nodes.controlPlane.records[]"} {
		for _, part := range []string{"name", "type", "from", "to", "then"} {
			all = append(all, reach{records + "." + part, Leads})
		}
		all = append(all, provides(records)...)
	}
	return append(all, provides("spec.mirror.redirect")...)
}

func provides(of string) []reach {
	return []reach{
		{of + ".resolvers", Connects},
		{of + ".provider.rfc2136.server", Connects},
		{of + ".provider.rfc2136.zone", Leads},
		{of + ".provider.rfc2136.tsigSecret", Leads},
		{of + ".provider.rfc2136.tsigKeyFile", Reads},
		{of + ".provider.route53", Leads},
	}
}

func effectOf(path string) (Effect, bool) {
	path = regexp.MustCompile(`\[\d*\]`).ReplaceAllString(path, "[]")
	for _, r := range reaches() {
		if rest, ok := strings.CutPrefix(path, r.field); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return r.effect, true
		}
	}
	return "", false
}

// Calls are a defaulted Migration's settings with effects outside, in order.
func Calls(m *v1alpha1.Migration) []Call {
	m = m.DeepCopy()
	Default(m)
	values := map[string]any{}
	flatten("spec", untyped(m)["spec"], values)
	var all []Call
	for _, path := range slices.Sorted(maps.Keys(values)) {
		if effect, ok := effectOf(path); ok {
			all = append(all, Call{Field: path, Effect: effect, Value: values[path]})
		}
	}
	return all
}

// Digest stands for the calls of a Migration of this name: SHA-256 in hexadecimal. It is empty for
// none.
func Digest(m *v1alpha1.Migration) string {
	calls := Calls(m)
	if len(calls) == 0 {
		return ""
	}
	lines := [][2]any{{"metadata.name", m.Name}}
	for _, c := range calls {
		lines = append(lines, [2]any{c.Field, c.Value})
	}
	body, err := json.Marshal(lines)
	if err != nil {
		panic(fmt.Sprintf("a Migration that is no JSON: %v", err)) // it was read from JSON
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Locate resolves relative paths of programs and files against the Migration's folder. Manifests
// stay as recorded: see spec.cni.manifests.
func Locate(m *v1alpha1.Migration, dir string) {
	from := func(path *string) {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
	for _, a := range actionsOf(&m.Spec) {
		if a.Exec != nil && len(a.Exec.Command) > 0 && strings.ContainsRune(a.Exec.Command[0], '/') {
			from(&a.Exec.Command[0])
		}
	}
	if n := m.Spec.Nodes; n != nil && n.ControlPlane != nil {
		for _, etcd := range []*v1alpha1.EtcdSpec{&n.ControlPlane.Etcd, n.ControlPlane.EtcdEvents} {
			if etcd == nil {
				continue
			}
			for _, file := range []*string{&etcd.CAFile, &etcd.CertFile, &etcd.KeyFile, &etcd.SnapshotFile} {
				from(file)
			}
		}
	}
}

// PassEnv has all programs of a Migration get some more variables of replumb's environment.
func PassEnv(m *v1alpha1.Migration, names []string) {
	for _, a := range actionsOf(&m.Spec) {
		for _, name := range names {
			if a.Exec != nil && !slices.Contains(a.Exec.Env, name) {
				a.Exec.Env = append(a.Exec.Env, name)
			}
		}
	}
}
