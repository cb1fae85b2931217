package spec

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/spec/window"
)

func validateLookup(l *v1alpha1.TierLookup) error {
	if l == nil {
		return nil
	}
	return validateAction("spec.tierLookup", l.Action)
}

func validateWindows(windows []v1alpha1.Window) error {
	for i, w := range windows {
		err := window.Check(w)
		var bad *window.Error
		if errors.As(err, &bad) {
			return &Error{Field: fmt.Sprintf("spec.windows[%d].%s", i, bad.Field), Problem: bad.Problem, Hint: bad.Hint}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func validateHooks(m *v1alpha1.MigrationSpec, phases []string) error {
	names := map[string]string{}
	for i, h := range m.Hooks {
		field := fmt.Sprintf("spec.hooks[%d]", i)
		if err := name(field+".name", h.Name, names); err != nil {
			return err
		}
		if err := oneOf(field+".when", h.When, v1alpha1.BeforePhase, v1alpha1.AfterPhase,
			v1alpha1.BeforeTier, v1alpha1.AfterTier, v1alpha1.BeforeBatch, v1alpha1.AfterBatch); err != nil {
			return err
		}
		known, what := tier.Names(m), "tier"
		if h.When == v1alpha1.BeforePhase || h.When == v1alpha1.AfterPhase {
			known, what = phases, "phase"
		}
		for j, of := range h.Of {
			if !slices.Contains(known, of) {
				return &Error{
					Field: fmt.Sprintf("%s.of[%d]", field, j), Problem: fmt.Sprintf("there is no %s %q", what, of),
					Hint: "use one of " + strings.Join(known, ", "),
				}
			}
		}
		if err := validateAction(field, h.Action); err != nil {
			return err
		}
		if err := oneOf(field+".onFailure", h.OnFailure, v1alpha1.FailureStop, v1alpha1.FailureContinue); err != nil {
			return err
		}
	}
	return nil
}

func validateNotify(notifiers []v1alpha1.Notifier) error {
	for i, n := range notifiers {
		field := fmt.Sprintf("spec.notify[%d]", i)
		if err := validateURL(field, n.HTTPAction); err != nil {
			return err
		}
		if err := oneOf(field+".format", n.Format, v1alpha1.NotifyJSON, v1alpha1.NotifySlack); err != nil {
			return err
		}
		if err := validateTimeout(field+".timeout", n.Timeout); err != nil {
			return err
		}
		if err := oneOf(field+".onFailure", n.OnFailure, v1alpha1.FailureStop, v1alpha1.FailureContinue); err != nil {
			return err
		}
	}
	return nil
}

func validateAction(field string, a v1alpha1.Action) error {
	if (a.Exec == nil) == (a.HTTP == nil) {
		return &Error{Field: field, Problem: "needs exactly one of exec and http", Hint: "set exec.command, or http.url"}
	}
	if a.Exec != nil && (len(a.Exec.Command) == 0 || a.Exec.Command[0] == "") {
		return &Error{
			Field: field + ".exec.command", Problem: "is empty",
			Hint: "write the program and its arguments as a list, such as [/usr/local/bin/tiers, --all]",
		}
	}
	if a.HTTP != nil {
		if err := validateURL(field+".http", *a.HTTP); err != nil {
			return err
		}
	}
	return validateTimeout(field+".timeout", a.Timeout)
}

// validateURL never quotes a URL: it may hold a secret. Whether a variable is set is for the machine to say that runs the
// migration, see callout.Check and Actions.
func validateURL(field string, h v1alpha1.HTTPAction) error {
	if (h.URL == "") == (h.URLFromEnv == "") {
		return &Error{
			Field: field, Problem: "needs exactly one of url and urlFromEnv",
			Hint: "use urlFromEnv for a URL with a secret in it, else url",
		}
	}
	if h.URLFromEnv != "" {
		if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(h.URLFromEnv) {
			return &Error{
				Field: field + ".urlFromEnv", Problem: "is not the name of an environment variable",
				Hint: "write the name of the variable, such as SLACK_URL; the URL itself belongs into the variable",
			}
		}
		return nil
	}
	u, err := url.Parse(h.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return &Error{
			Field: field + ".url", Problem: "is not a URL of http or https with a host",
			Hint: "write it with its scheme, such as https://hooks.example.com/replumb",
		}
	}
	return nil
}

func validateTimeout(field string, d *metav1.Duration) error {
	if d == nil || d.Duration <= 0 || d.Duration > maxTimeout {
		return &Error{
			Field: field, Problem: fmt.Sprintf("is not longer than nothing and at most %s", maxTimeout),
			Hint: "write a duration such as 30s",
		}
	}
	return nil
}
