package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// document is one as status prints it.
type document struct {
	DocumentHead `json:",inline"`
	Migration    string          `json:"migration"`
	Counts       v1alpha1.Counts `json:"counts"`
	Lock         string          `json:"lock,omitempty"`
}

func documentOf(name string) document {
	return document{DocumentHead: HeadOf("MigrationStatus", name), Migration: name, Counts: v1alpha1.Counts{Total: 1_234_567}}
}

// TestDocuments prints a document, or a list of them, in every format that is none for people.
func TestDocuments(t *testing.T) {
	none, one, two := ListOf([]document(nil)), documentOf("a"), ListOf([]document{documentOf("a"), documentOf("b")})
	f := &Format{}
	f.DeclareDocument(&cobra.Command{}, "table", "json", "yaml", "name")
	for _, tt := range []struct {
		format string
		of     any
		want   string
	}{
		{"json", one, `"migration": "a"`},
		{"json", two, `"kind": "List"`},
		{"json", none, `"items": []`},
		{"yaml", one, "migration: a"},
		{"yaml", two, "kind: List"},
		{"jsonpath={.migration}", one, "a"},
		{"jsonpath={.items[*].migration}", two, "a b"},
		{"jsonpath={.counts.total}", one, "1234567"},
		{"custom-columns=NAME:.metadata.name,OF:counts.total,LOCK:{.lock}", two, "a     1234567  <none>\nb     1234567  <none>\n"},
		{"custom-columns=NAME:.metadata.name", one, "NAME\na\n"},
		{"custom-columns=NAME:.metadata.name", none, "NAME\n"},
		{"go-template={{range .items}}{{.migration}},{{end}}", two, "a,b,"},
	} {
		t.Run(tt.format, func(t *testing.T) {
			var out strings.Builder
			f.Name = tt.format
			err := f.Print(&out, tt.of)
			if err != nil || !strings.Contains(out.String(), tt.want) {
				t.Fatalf("printed %q, %v; want %q", &out, err, tt.want)
			}
			var parsed struct{ Items []any }
			switch tt.format {
			case "json":
				err = json.Unmarshal([]byte(out.String()), &parsed)
			case "yaml":
				err = yaml.Unmarshal([]byte(out.String()), &parsed)
			default:
				return
			}
			if list, ok := tt.of.(List[document]); err != nil || ok && len(parsed.Items) != len(list.Items) {
				t.Errorf("%d items, %v, in %s", len(parsed.Items), err, &out)
			}
		})
	}
}

func TestDocumentFlag(t *testing.T) {
	for format, fine := range map[string]bool{
		"table": true, "json": true, "custom-columns=A:.b": true, "custom-columns": false, "custom-columns=A": false, "custom-columns=A:.b[": false, "jsonpath={.a}": true, "go-template={{.a}}": true,
		"wide": false, "custom-columns=:.b": false, "jsonpath": false, "jsonpath={.a": false, "xml": false,
	} {
		t.Run(format, func(t *testing.T) {
			f := &Format{}
			cmd := &cobra.Command{}
			f.DeclareDocument(cmd, "table", "json", "yaml", "name")
			if err := cmd.Flags().Set("output", format); err != nil {
				t.Fatal(err)
			}
			err := cmd.PreRunE(cmd, nil)
			if (err == nil) != fine || err != nil && (ExitCode(err) != fault.ExitUsage || fault.Advice(err) == "") {
				t.Errorf("%v", err)
			}
		})
	}
}
