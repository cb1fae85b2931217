package offline

import (
	"fmt"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/engine/findings"
)

// Reading says what answers from an archive are worth: when it was made, and what is missing. It is
// nil for a cluster.
type Reading struct {
	Head Head
	// NotRead are resources of which not all was read when the archive was made, for lack of
	// rights.
	NotRead []string
	// Untried are dry runs taken for accepted, Unknown rights taken for missing and objects that
	// may exist.
	Untried, Unknown []string
}

// Reading is what has been answered since it was asked for last.
func (s *Server) Reading() *Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Reading{Head: s.archive.Head, NotRead: s.archive.Manifest.NotRead}
	r.Untried, r.Unknown = s.accepted(), s.missing()
	clear(s.untried)
	clear(s.unknown)
	clear(s.unread)
	return r
}

func (s *Server) Taken() time.Time { return s.archive.Head.Time }

func (r *Reading) Warnings() []string {
	if r == nil {
		return nil
	}
	return append(append([]string{}, r.Untried...), r.Unknown...)
}

func (r *Reading) Found() findings.Findings { return findings.Run(Checks(), r) }

// Checks say that findings are of a snapshot, and not of a cluster. They run where a snapshot is
// read.
func Checks() []findings.Check[*Reading] {
	return findings.Group("Snapshot", []findings.Check[*Reading]{
		{
			Code:     "RP0001",
			Severity: findings.Warning,
			Run:      checkLive,
			Claim:    "the cluster itself was asked, as it is now",
			Why: "a snapshot shows a cluster as it was when it was taken, to the one who took it: what has changed since, and what others may do, " +
				"is not in it",
			Fix: "run the same command on the cluster, without --from, before apply",
		},
		{
			Code:     "RP0002",
			Severity: findings.Warning,
			Run:      checkTried,
			Claim:    "the API server was asked whether it accepts what checks try",
			Why: "from a snapshot no dry run is made, and each counts as accepted: webhooks, quotas and policies that would refuse it are found on " +
				"the cluster alone",
			Fix: "run replumb check on the cluster, without --from, before apply",
		},
		{
			Code:     "RP0003",
			Severity: findings.Warning,
			Run:      checkRead,
			Claim:    "all that checks look at could be read",
			Why:      "checks know nothing of what the one who took the snapshot may not read, and say so only where it is all that they look at",
			Fix: "take the snapshot again with the roles to view: replumb rbac KIND --for view prints them; what was not asked for then is found on the " +
				"cluster alone",
		},
	}...)
}

func checkLive(r *Reading) []findings.Result {
	if r == nil {
		return nil
	}
	of := r.Head.Server
	if r.Head.Context != "" {
		of = fmt.Sprintf("context %s, server %s", r.Head.Context, of)
	}
	return []findings.Result{findings.Failed("", "this is of a snapshot, taken at %s by replumb %s, of %s",
		r.Head.Time.UTC().Format(time.RFC3339), r.Head.Replumb, of)}
}

func checkTried(r *Reading) (out []findings.Result) {
	if r == nil {
		return nil
	}
	for _, line := range r.Untried {
		out = append(out, findings.NotKnown("", "%s", line))
	}
	return out
}

func checkRead(r *Reading) (out []findings.Result) {
	if r == nil {
		return nil
	}
	if len(r.NotRead) > 0 {
		out = append(out, findings.NotKnown("", "not read as a whole, for lack of rights to list them: %s", strings.Join(r.NotRead, ", ")))
	}
	for _, line := range r.Unknown {
		out = append(out, findings.NotKnown("", "%s", line))
	}
	return out
}
