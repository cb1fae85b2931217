package migrationtest

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
)

// Requests are those that an Operator has made, as the rights that they took.
type Requests struct {
	mu     sync.Mutex
	taken  map[access.Right]bool
	denied map[string]bool
	// at says with which request the process is killed; nil is with none.
	at     func(access.Right) bool
	killed bool
}

// Kill kills the process that makes the requests just before the n-th, from 1, that takes a right,
// given as its text without a name or namespace: that one and all later ones are never heard of,
// until Revive.
func (q *Requests) Kill(right string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.killed = false
	q.at = func(r access.Right) bool {
		if r.Name, r.Namespace = "", ""; r.String() == right {
			n--
		}
		return n == 0
	}
}

// Revive starts the process again, and reports whether it was killed.
func (q *Requests) Revive() (killed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	killed, q.killed, q.at = q.killed, false, nil
	return killed
}

// dead reports whether the process is, by the time it would make a request. A mere attempt does
// not count.
func (q *Requests) dead(r access.Right, tried bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.killed = q.killed || !tried && q.at != nil && q.at(r)
	return q.killed
}

// killed answers what a process that is killed does not get to: with an error that is not worth
// another try.
func killed(q *http.Request) *http.Response {
	const status = `{"apiVersion":"v1","kind":"Status","status":"Failure","message":"killed","reason":"BadRequest","code":400}`
	return &http.Response{
		Status: "400 Bad Request", StatusCode: http.StatusBadRequest, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: q,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(status)),
	}
}

// byCommands are rights that commands take around a job: the journal, Events, reports of agents, a
// lock that is kept for longer than tests run, and definitions, which are there from an earlier
// test on.
func byCommands(r access.Right) bool {
	switch {
	case r.Namespace == v1alpha1.JournalNamespace, r.Resource == "events", r.Resource == "nodereports":
		return true
	}
	definition := r.Resource == "customresourcedefinitions" && (r.Verb == "create" || r.Verb == "update" && r.Name != "")
	return definition || r.Verb == "update" && r.Resource == "leases"
}

// Took fails the test for every right of some roles that no request took, unless it is listed with
// what would, and for what is listed and no role has. Rights of commands around a job are left out.
func (q *Requests) Took(t testing.TB, roles access.Roles, unused map[string]string) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	granted := map[string]bool{}
	for _, r := range roles.Rights() {
		granted[r.String()] = true
		if !q.covers(r) && !byCommands(r) && unused[r.String()] == "" {
			t.Errorf("%s is granted by %s, and nothing took it", r, roles.Granting(r).Name)
		}
	}
	for text := range unused {
		if !granted[text] {
			t.Errorf("%q is listed as not used, and no role has it", text)
		}
	}
}

// Made reports whether a request took a right, whatever the name of the object.
func (q *Requests) Made(right access.Right) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range q.taken {
		if r.Name = right.Name; r == right {
			return true
		}
	}
	return false
}

func (q *Requests) covers(granted access.Right) bool {
	for r := range q.taken {
		if granted.Namespace == "" {
			r.Namespace = ""
		}
		if granted.Name == "" {
			r.Name = ""
		}
		if r == granted {
			return true
		}
	}
	return false
}

// recorder sees requests on their way to the API server, and its answers.
type recorder struct {
	next http.RoundTripper
	seen *Requests
	user string
}

func (c *recorder) RoundTrip(q *http.Request) (*http.Response, error) {
	r := rightOf(q)
	if c.seen.dead(r, q.URL.Query().Has("dryRun")) {
		if q.Body != nil {
			_ = q.Body.Close() // as a transport does
		}
		return killed(q), nil
	}
	answer, err := c.next.RoundTrip(q)
	if err != nil {
		return answer, err
	}
	c.seen.mu.Lock()
	defer c.seen.mu.Unlock()
	if answer.StatusCode == http.StatusForbidden {
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		answer.Body = io.NopCloser(bytes.NewReader(body))
		if err == nil && bytes.Contains(body, []byte(`User \"`+c.user+`\" cannot`)) { // admission denies in other words
			c.seen.denied[r.String()] = true
		}
		return answer, err
	}
	c.seen.taken[r] = true
	if r.Verb == "patch" && answer.StatusCode == http.StatusCreated { // server-side apply
		r.Verb = "create"
		c.seen.taken[r] = true
	}
	return answer, nil
}

// rightOf is what a request takes, as RequestInfoFactory in k8s.io/apiserver
// pkg/endpoints/request/requestinfo.go has it.
func rightOf(q *http.Request) access.Right {
	verb := map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[q.Method]
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	r := access.Right{Verb: verb}
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		r.Group, parts = parts[1], parts[3:]
	default:
		r.URL = q.URL.Path
		return r
	}
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		r.Namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "")
	r.Resource, r.Name, r.Subresource = parts[0], parts[1], parts[2]
	if r.Name == "" {
		r.Verb = ofMany(verb, q.URL.Query().Get("watch") != "")
	}
	return r
}

// ofMany is the verb for all objects of a kind.
func ofMany(verb string, watch bool) string {
	switch {
	case verb == "get" && watch:
		return "watch"
	case verb == "get":
		return "list"
	case verb == "delete":
		return "deletecollection"
	}
	return verb
}
