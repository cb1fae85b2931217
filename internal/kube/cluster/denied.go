package cluster

import (
	"strings"

	"github.com/replumb/replumb/internal/engine/fault"
)

// DeniedError says that the cluster could not even be looked at.
type DeniedError struct {
	Rights []Right
}

// Error joins the verbs on one resource: a user without any right misses dozens.
func (e *DeniedError) Error() string {
	var texts []string
	for i, r := range e.Rights {
		verb, resource, _ := strings.Cut(r.String(), " ")
		if i > 0 && strings.HasSuffix(e.Rights[i-1].String(), " "+resource) {
			last := len(texts) - 1
			texts[last] = strings.Replace(texts[last], " ", ","+verb+" ", 1)
			continue
		}
		texts = append(texts, verb+" "+resource)
	}
	return "the user has no right to " + strings.Join(texts, ", ")
}

// ExitCode implements fault.Coder.
func (*DeniedError) ExitCode() int { return fault.ExitBlocked }
