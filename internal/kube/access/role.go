package access

import "slices"

// Purpose is what a role is for.
type Purpose string

// The purposes. Each but View needs the role of View as well.
const (
	// View is check, plan, status and report: get, list and watch, and nothing that writes.
	View Purpose = "view"
	// Operate is apply, rollback, finish, pause, resume and unfreeze.
	Operate Purpose = "operate"
	// Agents is the installation of agents on the nodes.
	Agents Purpose = "agents"
	// Overlap is the Deployment that keeps bridges in step between commands.
	Overlap Purpose = "overlap"
	// WithoutAgents is the proxy to nodes through the API server, in place of agents.
	WithoutAgents Purpose = "without-agents"
	// BehindCilium is a policy that changes what others write of Services.
	BehindCilium Purpose = "behind-cilium"
	// KubeadmGates are pods that change files of nodes.
	KubeadmGates Purpose = "kubeadm-gates"
	// KubeadmEtcd is a pod on a control plane that etcd is reached through.
	KubeadmEtcd Purpose = "kubeadm-etcd"
)

// Purposes lists them in the order of the documentation.
func Purposes() []Purpose {
	return []Purpose{View, Operate, Agents, Overlap, WithoutAgents, BehindCilium, KubeadmGates, KubeadmEtcd}
}

// Rule groups rights that are needed for one reason.
type Rule struct {
	// Why is a sentence for people.
	Why    string
	Rights []Right
	// Optional rights are not needed for a run: without them a check is unknown, or a convenience
	// is not written.
	Optional bool
}

// Role has the rights of one purpose in one kind of migration.
type Role struct {
	// Name of the ClusterRole, and of the Role in each namespace.
	Name string
	// File in deploy that has it.
	File    string
	Purpose Purpose
	Rules   []Rule
	// Danger lists what the role allows beyond its purpose, where no rule of RBAC is narrow enough.
	Danger []string
}

// Rights are those of all rules, each once.
func (r Role) Rights() []Right {
	var all []Right
	for _, rule := range r.Rules {
		all = append(all, rule.Rights...)
	}
	return unique(all)
}

// Needed are the rights that are not optional.
func (r Role) Needed() []Right {
	var all []Right
	for _, rule := range r.Rules {
		if !rule.Optional {
			all = append(all, rule.Rights...)
		}
	}
	return unique(all)
}

// Roles of one kind of migration.
type Roles []Role

// Of selects roles by purpose.
func (r Roles) Of(purposes ...Purpose) Roles {
	return slices.DeleteFunc(slices.Clone(r), func(one Role) bool { return !slices.Contains(purposes, one.Purpose) })
}

// Rights are those of all roles, each once.
func (r Roles) Rights() []Right {
	var all []Right
	for _, one := range r {
		all = append(all, one.Rights()...)
	}
	return unique(all)
}

// Needs reports whether a right is needed by one of the roles.
func (r Roles) Needs(right Right) bool {
	return slices.ContainsFunc(r, func(one Role) bool { return slices.Contains(one.Needed(), right) })
}

// Granting is the role that has a right, or the zero value.
func (r Roles) Granting(right Right) Role {
	for _, one := range r {
		if slices.Contains(one.Rights(), right) {
			return one
		}
	}
	return Role{}
}
