package access

import (
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/fault"
)

// DeniedError reports a user who may not even read the cluster.
type DeniedError struct {
	Missing []Answer
}

func (e *DeniedError) Error() string {
	var rights []Right
	for _, a := range e.Missing {
		rights = append(rights, a.Right)
	}
	return "the user has no right to " + strings.Join(Texts(rights), ", ")
}

func (e *DeniedError) Advice() string {
	var roles []string
	for _, a := range e.Missing {
		if a.Role != "" && !slices.Contains(roles, a.Role) {
			roles = append(roles, a.Role)
		}
	}
	if len(roles) == 0 {
		return ""
	}
	return "bind to the user, with replumb rbac, the roles " + strings.Join(roles, ", ")
}

func (*DeniedError) ExitCode() int { return fault.ExitBlocked }
