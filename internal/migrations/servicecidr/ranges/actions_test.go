package ranges

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec/hook"
)

// certificateGate waits until a file has the request, and calls an action that is to write it; nil
// is none.
func certificateGate(action *v1alpha1.Action, file string) engine.Step {
	holds := func(context.Context) error {
		const want = `"gate":"certificates","want":"172.24.0.1","keep":"10.96.0.1"}`
		if body, err := os.ReadFile(file); err != nil || !strings.Contains(string(body), want) {
			return engine.NotYet("172.24.0.1 is not in the certificate of 192.0.2.1:6443")
		}
		return nil
	}
	if action != nil {
		action.Timeout = &metav1.Duration{Duration: 10 * time.Second}
	}
	gate := NewGate("certificates", "Wait for certificates", "issue a new certificate", time.Minute, holds)
	return CallAction(gate, services.Spec{Name: "m", Actions: &v1alpha1.GateActions{Certificates: action}}, GateRequest{
		Cluster: engine.Identity{UID: "uid"}, Run: hook.Apply, Gate: v1alpha1.GateCertificates, Want: "172.24.0.1", Keep: "10.96.0.1",
	})
}

func program(command ...string) *v1alpha1.Action {
	return &v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: command}}
}

// runOne drives a step, and returns how often it was tried again.
func runOne(t *testing.T, s engine.Step) (retries int, err error) {
	t.Helper()
	plan := &engine.Plan{Name: "m", Phases: []engine.Phase{{Name: "gate", Groups: engine.InOrder(s)}}}
	r := &engine.Runner{Sink: func(e engine.Event) {
		if e.Kind == engine.StepRetried {
			retries++
		}
	}}
	return retries, r.Run(t.Context(), plan)
}

// TestGateCallsItsAction: a program or a URL is called with what is wanted, once, and not where all
// is as it should be already; the gate passes when it sees the result.
func TestGateCallsItsAction(t *testing.T) {
	posts := 0
	file := filepath.Join(t.TempDir(), "told")
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		posts++
		body, _ := io.ReadAll(r.Body)
		if err := os.WriteFile(file, body, 0o600); err != nil {
			t.Error(err)
		}
	}))
	defer web.Close()
	const script = `cat > "$1"; [ "$REPLUMB_WANT $REPLUMB_KEEP $REPLUMB_ACTION $REPLUMB_RUN $REPLUMB_CLUSTER_UID" = "172.24.0.1 10.96.0.1 certificates apply uid" ]`
	for name, action := range map[string]*v1alpha1.Action{
		"exec": program("sh", "-c", script, "sh", file), "webhook": {HTTP: &v1alpha1.HTTPAction{URL: web.URL}},
	} {
		step := certificateGate(action, file)
		if engine.RoleOf(step) != engine.RoleCall {
			t.Errorf("%s: its role is %s", name, engine.RoleOf(step))
		}
		changes, err := step.(engine.Previewer).Preview()
		if err != nil || len(changes) != 1 || changes[0].Verb != "call" {
			t.Errorf("%s: previews %+v, %v", name, changes, err)
		}
		if _, err := runOne(t, step); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := runOne(t, certificateGate(program("false"), file)); err != nil {
			t.Errorf("%s: called where there is nothing to do: %v", name, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if posts != 1 {
		t.Errorf("the URL was called %d times", posts)
	}
}

// TestGateWithoutActionIsForPeople, as it is without any, or with those of others.
func TestGateWithoutActionIsForPeople(t *testing.T) {
	s := certificateGate(nil, "none")
	guide, ok := s.(engine.Guide)
	if !ok || engine.RoleOf(s) != engine.RoleGate || guide.Guide() != "issue a new certificate" {
		t.Errorf("its role is %s", engine.RoleOf(s))
	}
	for _, actions := range []*v1alpha1.GateActions{nil, {Kubelets: program("true"), APIServers: program("true")}} {
		if a := (&services.Spec{Actions: actions}).Action(v1alpha1.GateCertificates); a != nil {
			t.Errorf("the action is %v", a)
		}
	}
}

// TestGateActionFails: a program that fails, one that is not there, and a URL that refuses stop the
// run at once, and say what to do instead. The control is one that says that all is well and does
// nothing: it is called once, and the gate goes on waiting.
func TestGateActionFails(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	refuses := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	defer refuses.Close()
	file := filepath.Join(t.TempDir(), "told")
	for name, tt := range map[string]struct {
		action *v1alpha1.Action
		want   string
	}{
		"exit status": {program("sh", "-c", "echo no CA >&2; exit 3"), "spec.serviceCIDR.actions.certificates failed: calling sh: exit status 3; its output is on the terminal of "},
		"not there":   {program("/nonexistent/program"), "spec.serviceCIDR.actions.certificates failed: calling /nonexistent/program: it cannot be run"},
		"no server":   {&v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: closed.URL}}, "spec.serviceCIDR.actions.certificates failed: calling http://127.0.0.1:"},
		"404":         {&v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: refuses.URL}}, "404"},
	} {
		retries, err := runOne(t, certificateGate(tt.action, file))
		if err == nil || !strings.Contains(err.Error(), tt.want) || retries > 0 {
			t.Errorf("%s: %v, tried again %d times", name, err, retries)
		}
		hint := fault.Advice(err)
		if !strings.Contains(hint, "the same command again") || !strings.Contains(hint, "issue a new certificate") {
			t.Errorf("%s: hint %q", name, hint)
		}
		if said := fault.Private(err); (name == "exit status") != (said == "no CA") {
			t.Errorf("%s: said %q", name, said)
		}
	}
	count := filepath.Join(t.TempDir(), "count")
	step := certificateGate(program("sh", "-c", `echo called >> "$1"`, "sh", count), file)
	for range 3 {
		if err := step.Do(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := step.Verify(t.Context())
		if !engine.Retryable(err) || !strings.Contains(err.Error(), "172.24.0.1 is not in the certificate") ||
			!strings.Contains(fault.Advice(err), "was called and did not fail, and this is still so") {
			t.Errorf("control: %v (%s)", err, fault.Advice(err))
		}
	}
	if body, err := os.ReadFile(count); string(body) != "called\n" {
		t.Errorf("called: %q, %v", body, err)
	}
}

// TestTheDocumentedGateRequestIsTheOneThatIsSent compares docs/hooks.md with what is sent, field by
// field.
func TestTheDocumentedGateRequestIsTheOneThatIsSent(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(page, -1) {
		if !bytes.Contains(block[1], []byte(`"kind": "GateRequest"`)) {
			continue
		}
		found++
		var request GateRequest
		var written bytes.Buffer
		if err := errors.Join(json.Unmarshal(block[1], &request), json.Compact(&written, block[1])); err != nil {
			t.Fatal(err)
		}
		sent, err := json.Marshal(request)
		if err != nil || written.String() != string(sent) {
			t.Errorf("documented %s\nbut sent   %s, %v", written.String(), sent, err)
		}
	}
	if found != 1 {
		t.Errorf("%d such requests in the page", found)
	}
}

// lost is the fence of a run whose lock is another's.
type lost struct{}

func (lost) MayWrite(context.Context, bool) error {
	return &lease.LostError{Why: errors.New("it is another's")}
}

// TestActionBehindAFence: the record that an action is about exists already, so that nothing but
// the call itself asks whether others are at work.
func TestActionBehindAFence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "told")
	step := certificateGate(program("sh", "-c", `cat > "$1"`, "sh", file), file)
	if err := step.Do(engine.Fenced(t.Context(), lost{})); !engine.Revoked(err) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program ran: %v", err)
	}
}
