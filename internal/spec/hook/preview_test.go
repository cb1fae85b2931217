package hook_test

import (
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/spec/hook"
)

// TestPreviewTellsNoSecrets: what is called is shown, but for arguments and URLs.
func TestPreviewTellsNoSecrets(t *testing.T) {
	for _, tt := range []struct {
		name   string
		action v1alpha1.Action
		want   string
	}{
		{"program", v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"/bin/announce", "--token=secret"}}}, "program /bin/announce"},
		{"webhook", v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: "https://example.com/secret"}}, "webhook of hook chat"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changes, err := engine.Preview(hook.New(v1alpha1.Hook{Name: "chat", Action: tt.action}, hook.Occasion{}))
			if err != nil || len(changes) != 1 || changes[0].Verb != "call" || changes[0].Object != tt.want ||
				strings.Contains(changes[0].Object, "secret") {
				t.Errorf("got %+v, %v, want %s", changes, err, tt.want)
			}
		})
	}
}
