// Package rbac writes rights as roles of Kubernetes, and as a table for people.
package rbac

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
)

const everywhere = ""

func namespaces(role access.Role) []string {
	var all []string
	for _, r := range role.Rights() {
		if !slices.Contains(all, r.Namespace) {
			all = append(all, r.Namespace)
		}
	}
	slices.Sort(all)
	return all
}

type line struct {
	group, url string
	resources  []string
	names      []string
	verbs      []string
}

// lines are rights in one namespace as rules, in their order. seen are the rights of earlier lines
// of the role.
func lines(rights []access.Right, namespace string, seen map[access.Right]bool) []line {
	var objects []line
	for _, r := range rights {
		if r.Namespace != namespace || seen[r] {
			continue
		}
		seen[r] = true
		i := slices.IndexFunc(objects, func(l line) bool {
			return l.group == r.Group && l.url == r.URL && l.resources[0] == resource(r) &&
				slices.Equal(l.names, named(r.Name))
		})
		if i < 0 {
			i = len(objects)
			objects = append(objects, line{
				group: r.Group, url: r.URL, resources: []string{resource(r)}, names: named(r.Name),
			})
		}
		objects[i].verbs = append(objects[i].verbs, r.Verb)
	}
	return joined(objects)
}

func named(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// joined are lines with those in one that differ in names or in resources alone.
func joined(objects []line) []line {
	var out []line
	for _, l := range objects {
		same := func(o line) bool { return o.group == l.group && o.url == l.url && slices.Equal(o.verbs, l.verbs) }
		i := slices.IndexFunc(out, func(o line) bool { // another name of the same resource
			return same(o) && slices.Equal(o.resources, l.resources) && len(o.names) > 0 && len(l.names) > 0
		})
		if i >= 0 {
			out[i].names = append(out[i].names, l.names...)
			continue
		}
		out = append(out, l)
	}
	objects, out = out, nil
	for _, l := range objects {
		i := slices.IndexFunc(out, func(o line) bool { // another resource, with the same names
			return o.group == l.group && o.url == l.url && l.url == "" && slices.Equal(o.verbs, l.verbs) && slices.Equal(o.names, l.names)
		})
		if i >= 0 {
			out[i].resources = append(out[i].resources, l.resources...)
			continue
		}
		out = append(out, l)
	}
	return out
}

// Rules are the rules of a role that has rights: one for each resource, or the object of it that is
// named.
func Rules(rights []access.Right) []rbacv1.PolicyRule {
	var all []rbacv1.PolicyRule
	for _, r := range rights {
		rule := rbacv1.PolicyRule{ResourceNames: named(r.Name), NonResourceURLs: named(r.URL)}
		if r.URL == "" {
			rule.APIGroups, rule.Resources = []string{r.Group}, []string{resource(r)}
		}
		i := slices.IndexFunc(all, func(p rbacv1.PolicyRule) bool {
			p.Verbs = nil
			return equality.Semantic.DeepEqual(p, rule)
		})
		if i < 0 {
			all, i = append(all, rule), len(all)
		}
		all[i].Verbs = append(all[i].Verbs, r.Verb)
	}
	return all
}

func resource(r access.Right) string {
	if r.Subresource != "" {
		return r.Resource + "/" + r.Subresource
	}
	return r.Resource
}

// Namespaces are the manifests of replumb's namespaces, which its Roles need. Made beforehand, they
// stay.
func Namespaces() string {
	var b strings.Builder
	fmt.Fprintf(&b, `---
apiVersion: v1
kind: Namespace
metadata:
  name: %s
  labels: {%s: ""} # not a migration's, so none removes it
---
apiVersion: v1
kind: Namespace
metadata:
  name: %s
  labels: {%s: %s}
`, v1alpha1.SystemNamespace, v1alpha1.LabelMigration, v1alpha1.JournalNamespace, v1alpha1.LabelRole, v1alpha1.RoleJournal)
	return b.String()
}

// Manifest is a role as YAML: a ClusterRole, and a Role in each namespace that has rights of its
// own, with what they are for.
func Manifest(role access.Role) string {
	var b strings.Builder
	for i, namespace := range namespaces(role) {
		b.WriteString("---\n")
		if i == 0 {
			for _, text := range role.Danger {
				fmt.Fprintf(&b, "# %s\n", text)
			}
		}
		kind, in := "ClusterRole", ""
		if namespace != everywhere {
			kind, in = "Role", "\n  namespace: "+namespace
		}
		fmt.Fprintf(&b, "apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata:%s\n  name: %s\nrules:\n", kind, in, role.Name)
		seen := map[access.Right]bool{}
		for _, rule := range role.Rules {
			all := lines(rule.Rights, namespace, seen)
			if len(all) == 0 {
				continue
			}
			for _, text := range wrapped(rule.Why, 120) {
				fmt.Fprintf(&b, "  # %s\n", text)
			}
			for _, l := range all {
				b.WriteString(l.yaml())
			}
		}
	}
	return b.String()
}

func (l line) yaml() string {
	verbs := "    verbs: [" + strings.Join(l.verbs, ", ") + "]\n"
	if l.url != "" {
		return "  - nonResourceURLs: [" + l.url + "]\n" + verbs
	}
	text := "  - apiGroups: [" + cmp.Or(l.group, `""`) + "]\n    resources: [" + strings.Join(l.resources, ", ") + "]\n"
	if len(l.names) > 0 {
		text += "    resourceNames: [" + strings.Join(l.names, ", ") + "]\n"
	}
	return text + verbs
}

// Bindings bind a role to a user, a group or a ServiceAccount, as YAML. Others that the role is
// bound to keep it.
func Bindings(role access.Role, who rbacv1.Subject) string {
	var b bytes.Buffer
	for _, namespace := range namespaces(role) {
		kind, in := "ClusterRole", ""
		if namespace != everywhere {
			kind, in = "Role", "\n  namespace: "+namespace
		}
		fmt.Fprintf(&b, `---
apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]sBinding
metadata:%[2]s
  name: %[6]q
  labels: {app.kubernetes.io/part-of: replumb}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[1]s, name: %[3]s}
subjects:
  - {%[4]s, name: %[5]q}
`, kind, in, role.Name, subject(who), who.Name, bindingName(role, who))
	}
	return b.String()
}

// subject is whom a role is bound to, without the name.
func subject(who rbacv1.Subject) string {
	if who.Kind == rbacv1.ServiceAccountKind {
		return "kind: " + who.Kind + ", namespace: " + who.Namespace
	}
	return "apiGroup: rbac.authorization.k8s.io, kind: " + who.Kind
}

// Account is the manifest of a ServiceAccount.
func Account(namespace, name string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  namespace: %s\n  name: %s\n", namespace, name)
}

// OperatorFile is the file of deploy with the rights of the operator: its account, its role, and
// the role to see whether it is alive, both bound.
func OperatorFile(operator, lease access.Role) string {
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: v1alpha1.SystemNamespace, Name: operator.Name}
	everyone := rbacv1.Subject{Kind: rbacv1.GroupKind, Name: "system:authenticated"}
	return `# The rights of the operator (replumb operator), generated from the lists in the code: the roles of all kinds of migrations in one, for the
# account that it runs as, and for every user to see whether it is alive. docs/operator.md says more.
#
` + Namespaces() + Account(account.Namespace, account.Name) +
		Manifest(operator) + Bindings(operator, account) + Manifest(lease) + Bindings(lease, everyone)
}

// bindingName has no slash and no percent sign: names of bindings are segments of a path.
func bindingName(role access.Role, who rbacv1.Subject) string {
	return role.Name + ":" + strings.NewReplacer("/", "-", "%", "-").Replace(who.Name)
}

func wrapped(text string, width int) []string {
	var all []string
	current := ""
	for word := range strings.FieldsSeq(text) {
		if current != "" && len(current)+1+len(word) > width {
			all, current = append(all, current), ""
		}
		if current != "" {
			current += " "
		}
		current += word
	}
	return append(all, current)
}

// Table is a role for people who read Markdown.
func Table(role access.Role) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| verbs | what | where | what for |\n|---|---|---|---|\n")
	for _, rule := range role.Rules {
		why := rule.Why
		if rule.Optional {
			why += " Optional."
		}
		seen := map[access.Right]bool{}
		for _, namespace := range namespaces(role) {
			for _, l := range lines(rule.Rights, namespace, seen) {
				what := l.url
				if what == "" {
					what = strings.Join(l.resources, ", ")
					if l.group != "" {
						what += " (" + l.group + ")"
					}
					if len(l.names) > 0 {
						what += ": " + strings.Join(l.names, ", ")
					}
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.Join(l.verbs, ", "), what, cmp.Or(namespace, "everywhere"), why)
				why = ""
			}
		}
	}
	return b.String()
}

// File is a file of deploy with roles and their namespaces. what is a phrase such as "moves
// Services", name the argument of replumb rbac.
func File(what, name string, roles access.Roles) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Roles for who %[1]s, one for each purpose. Generated from the lists in the code; docs/rights.md has them as a table.
#
#   replumb rbac %[2]s --user NAME | kubectl apply -f -             # these, and bindings to who migrates
#   replumb rbac %[2]s --user NAME --for view | kubectl apply -f -  # to who looks: check, plan, status, report
#   replumb rbac -f FILE --user NAME | kubectl apply -f -           # what the Migration in FILE takes, and no more
#
# Who has one of the others needs the role to view as well. No rule of RBAC can limit list, watch and create to objects of a name.
# Take rights away by their bindings. With this file, kubectl delete takes the namespaces as well, with backups and journals in them:
#
#   kubectl delete clusterrolebindings,rolebindings -A -l app.kubernetes.io/part-of=replumb
`, what, name)
	b.WriteString(Namespaces())
	for _, role := range roles {
		b.WriteString(Manifest(role))
	}
	return b.String()
}

// Page is the beginning of the page that has all roles as tables.
func Page() string {
	return `# Rights

What users need, by purpose, generated from the lists in the code, as the roles in deploy are; ` + "`replumb rbac`" + ` prints the same.
A test holds them against the audit log of an API server: whole migrations run with these roles and nothing else, and use what is in
them.

- **view**: check, plan, snapshot, status and report. It writes nothing. Findings name what is missing to operate.
- **operate**: apply, rollback, finish and all others. It needs view as well.
- **agents**: what it takes to have agents run. Without it, set spec.proof.agents: Disabled, or run with --without-agent.
- **overlap**: what it takes to keep bridges in step between commands. Services alone have it. Without it, set spec.serviceCIDR.follower: Disabled.
- **without-agents**: what agents do else. Services alone have it.

RBAC cannot restrict list, watch, create and deletecollection by name, so replumb keeps its own objects in two namespaces, replumb-system and
replumb-journal, with their own Roles. The files in deploy make them.

No role is for pull secrets (imagePullSecrets), which kubelets read. To those who may get Secrets in replumb-system, as who moves Services may, check shows
which are missing; it asks for their metadata alone.

Moves of Services and pods look for old addresses in Secrets (RP1407, RP2405) only where the user may list them in all namespaces by another role:
no role to view has that right, since it is the right to read every Secret. check asks first whether it is there, and sends no request for
Secrets where it is not: the outcome is unknown then, a warning that stops nothing. Administrators of the cluster have it, and the
operator, whose role has it for mirrors. A value is matched as it is read, 25 Secrets at a time, and neither shown nor kept: a finding
names the Secret and the key. Certificates, tokens of ServiceAccounts and releases of Helm are not read. To grant the right for one look
and take it back:

` + "```sh" + `
kubectl create clusterrole replumb-secrets-view --verb=list --resource=secrets
kubectl create clusterrolebinding replumb-secrets-view --clusterrole=replumb-secrets-view --user=NAME
replumb check -f FILE
kubectl delete clusterrolebinding,clusterrole replumb-secrets-view
` + "```" + `
`
}

// Section is the part of the page about one kind of migrations.
func Section(what string, roles access.Roles) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## Who %s\n", what)
	for _, role := range roles {
		fmt.Fprintf(&b, "\n### %s\n\nIn deploy/%s.\n", role.Name, role.File)
		if len(role.Danger) > 0 {
			fmt.Fprintf(&b, "\n**Beware.** %s\n", strings.Join(role.Danger, " "))
		}
		b.WriteString("\n" + Table(role))
	}
	return b.String()
}
