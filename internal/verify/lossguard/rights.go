package lossguard

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// Role is what a user needs to have agents run, in a migration of Services or in another one.
func Role(name, file string, services bool) access.Role {
	return access.Role{
		Name: name, File: file, Purpose: access.Agents,
		Rules: []access.Rule{{
			Why:    "Agents, what they run as, and what they may do themselves: no user can give agents more rights than they have.",
			Rights: narrow(agentset.Rights(services)),
		}, {
			Why:    "Whether admission lets pods of replumb in, asked by dry runs.",
			Rights: access.In(v1alpha1.SystemNamespace, access.Grant("", "pods", "", "create")...),
		}},
		Danger: []string{
			"Its holder can run privileged pods on every node, in " + v1alpha1.SystemNamespace + " alone, where Pod Security then admits them: root on every node.",
		},
	}
}

// narrow limits rights to the namespace and objects of agents.
func narrow(rights []access.Right) []access.Right {
	var all []access.Right
	for _, r := range rights {
		all = append(all, limited(r)...)
	}
	return all
}

func limited(r access.Right) []access.Right {
	reads := r.Verb == "get" || r.Verb == "list" || r.Verb == "watch"
	one := []access.Right{r}
	switch {
	case r.Namespace != "" || r.Name != "":
		return one
	case r.Resource == "namespaces":
		return access.Named(one, v1alpha1.SystemNamespace)
	case r.Resource == "customresourcedefinitions":
		return access.Named(one, "migrations.replumb.dev", "nodereports.replumb.dev")
	case r.Resource == "clusterroles", r.Resource == "clusterrolebindings":
		return applied(r, "replumb-agent", "replumb-probe")
	case r.Resource == "validatingadmissionpolicies", r.Resource == "validatingadmissionpolicybindings":
		return applied(r, "replumb-agent-reports")
	case r.Resource == "serviceaccounts", r.Resource == "daemonsets", r.Resource == "events":
		return access.In(v1alpha1.SystemNamespace, r)
	case r.Resource == "services" && !reads, r.Resource == "pods" && !reads:
		return access.In(v1alpha1.SystemNamespace, r)
	}
	return one
}

// applied limits a right to named objects: the authorizer sees names in server-side apply.
func applied(r access.Right, names ...string) []access.Right {
	var all []access.Right
	for _, name := range names {
		r.Name = name
		all = append(all, r)
	}
	return all
}
