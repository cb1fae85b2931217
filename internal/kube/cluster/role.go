package cluster

import "slices"

// Purpose is what a role is for.
type Purpose string

// The purposes. Who has the role of one of the others needs that to view as well.
const (
	// View is check, plan, status and report: get, list and watch, and nothing that writes.
	View Purpose = "view"
	// Operate is apply, rollback, finish, pause, resume and unfreeze.
	Operate Purpose = "operate"
	// Agents is to have agents run on the nodes.
	Agents Purpose = "agents"
	// Overlap is to have bridges kept in step between commands.
	Overlap Purpose = "overlap"
	// WithoutAgents is what agents do else: nodes are asked through the API server.
	WithoutAgents Purpose = "without-agents"
)

// Purposes lists them, in the order in which people read of them.
func Purposes() []Purpose { return []Purpose{View, Operate, Agents, Overlap, WithoutAgents} }

// Rule is rights that are needed for one reason.
type Rule struct {
	// Why is a sentence for people: what they are for.
	Why    string
	Rights []Right
	// Optional says that a run does without them: a check is unknown then, or something is not written that is good to have.
	Optional bool
}

// Role is what one purpose needs in one kind of migration.
type Role struct {
	// Name of the ClusterRole, and of the Role in each namespace.
	Name string
	// File in deploy that has it.
	File    string
	Purpose Purpose
	Rules   []Rule
	// Danger says what who has the role can do beyond its purpose, because no rule of RBAC is as narrow as what is needed; empty if nothing.
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

// Needed are the rights that it does not do without.
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

// Of are those for some purposes.
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

// Needs reports whether a right is needed by one of the roles, and not only optional.
func (r Roles) Needs(right Right) bool {
	return slices.ContainsFunc(r, func(one Role) bool { return slices.Contains(one.Needed(), right) })
}

// Granting is the role that has a right; the zero value if none has.
func (r Roles) Granting(right Right) Role {
	for _, one := range r {
		if slices.Contains(one.Rights(), right) {
			return one
		}
	}
	return Role{}
}
