package rights

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/kube/access"
)

// event is one line of an audit log.
type event struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	As         struct {
		Username string `json:"username"`
	} `json:"impersonatedUser"`
	Object struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		Group       string `json:"apiGroup"`
	} `json:"objectRef"`
	Status struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"`
}

// forbidden reports whether the authorizer denied the request; admission may deny some as well, and is another matter.
func (e event) forbidden() bool { return e.Annotations["authorization.k8s.io/decision"] == "forbid" }

// right is what the request took.
func (e event) right() access.Right {
	if e.Object.Resource == "" {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		return access.Right{Verb: e.Verb, URL: path}
	}
	o := e.Object
	return access.Right{
		Verb: e.Verb, Group: o.Group, Resource: o.Resource, Subresource: o.Subresource, Namespace: o.Namespace, Name: o.Name,
	}
}

// created is what a patch took beside that because it made its object, as server-side apply does. The log has the patch alone.
func (e event) created() access.Right {
	r := e.right()
	if e.Verb == "patch" && e.Status.Code == http.StatusCreated {
		r.Verb = "create"
	}
	return r
}

// covers reports whether a right that was granted is good for one that was used.
func covers(granted, used access.Right) bool {
	if granted.Namespace == "" {
		used.Namespace = ""
	}
	if granted.Name == "" {
		used.Name = ""
	}
	if granted.Group == "*" && granted.Resource == "*" && used.Resource != "" {
		used.Group, used.Resource, used.Subresource = "*", "*", ""
	}
	return granted == used
}

// audit is what a log has of some users.
type audit []event

// read gives what users did since the log had that many bytes.
func (s stage) read(t *testing.T, since int64, users ...string) audit {
	t.Helper()
	body, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	var all audit
	for line := range bytes.Lines(body[since:]) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if slices.Contains(users, e.As.Username) {
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		t.Fatalf("the audit log has nothing of %v", users)
	}
	return all
}

// size of the log.
func (s stage) size(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(s.log)
	if os.IsNotExist(err) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// allowed fails for every request that was denied, unless it is expected to be.
func (a audit) allowed(t *testing.T, expected ...access.Right) {
	t.Helper()
	seen := map[string]bool{}
	for _, e := range a {
		r := e.right()
		ok := slices.ContainsFunc(expected, func(x access.Right) bool { return covers(x, r) })
		if !e.forbidden() || ok || seen[r.String()] {
			continue
		}
		seen[r.String()] = true
		t.Errorf("%s was denied: %s (%s)", e.As.Username, r, e.RequestURI)
	}
}

// used fails for every right that no request took, unless there is a reason.
func (a audit) used(t *testing.T, roles access.Roles, unused map[string]string) {
	t.Helper()
	granted := map[string]bool{}
	for _, r := range roles.Rights() {
		granted[r.String()] = true
		took := slices.ContainsFunc(a, func(e event) bool { return !e.forbidden() && (covers(r, e.right()) || covers(r, e.created())) })
		if !took && unused[r.String()] == "" {
			t.Errorf("%s is granted by %s, and nothing took it", r, roles.Granting(r).Name)
		}
	}
	for text := range unused {
		if !granted[text] {
			t.Errorf("%q is in the list of what is not used, and no role grants it", text)
		}
	}
}

// onlyReads fails for every request that is more than get, list and watch, but for questions about the user's own rights.
func (a audit) onlyReads(t *testing.T) {
	t.Helper()
	for _, e := range a {
		question := e.Object.Resource == "selfsubjectaccessreviews"
		if !question && !slices.Contains([]string{"get", "list", "watch"}, e.Verb) {
			t.Errorf("%s sent: %s (%s)", e.As.Username, e.right(), e.RequestURI)
		}
	}
}
