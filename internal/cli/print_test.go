package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/engine/fault"
)

func aPage(name string) page {
	return &servicePage{statusHead: statusHead{Migration: name, Next: "nothing"}}
}

// TestDocuments prints what status finds as one document, in every format that is none for people.
func TestDocuments(t *testing.T) {
	none, one, two := []page(nil), []page{aPage("a")}, []page{aPage("a"), aPage("b")}
	cmd := &cobra.Command{}
	templates := (&app{}).documentFlag(cmd, "table", "json", "yaml", "name")
	for _, tt := range []struct {
		format string
		pages  []page
		want   string
	}{
		{"json", one, `"migration": "a"`},
		{"json", two, `"kind": "List"`},
		{"json", none, `"items": []`},
		{"yaml", one, "migration: a"},
		{"yaml", two, "kind: List"},
		{"jsonpath={.migration}", one, "a"},
		{"jsonpath={.items[*].migration}", two, "a b"},
		{"go-template={{range .items}}{{.migration}},{{end}}", two, "a,b,"},
	} {
		t.Run(tt.format, func(t *testing.T) {
			var out strings.Builder
			if err := printDocument(
				&out,
				tt.format,
				templates,
				oneDocument(tt.pages),
			); err != nil ||
				!strings.Contains(out.String(), tt.want) {
				t.Fatalf("printed %q, %v; want %q", &out, err, tt.want)
			}
			var parsed struct{ Items []any }
			var err error
			switch tt.format {
			case "json":
				err = json.Unmarshal([]byte(out.String()), &parsed)
			case "yaml":
				err = yaml.Unmarshal([]byte(out.String()), &parsed)
			default:
				return
			}
			if err != nil || len(tt.pages) > 1 && len(parsed.Items) != len(tt.pages) {
				t.Errorf("%d items, %v, in %s", len(parsed.Items), err, &out)
			}
		})
	}
}

func TestDocumentFlag(t *testing.T) {
	for format, fine := range map[string]bool{
		"table": true, "json": true, "jsonpath={.a}": true, "go-template={{.a}}": true,
		"wide": false, "jsonpath": false, "jsonpath={.a": false, "xml": false,
	} {
		t.Run(format, func(t *testing.T) {
			a := &app{}
			cmd := &cobra.Command{}
			a.documentFlag(cmd, "table", "json", "yaml", "name")
			a.output = format
			if err := cmd.PreRunE(
				cmd,
				nil,
			); (err == nil) != fine ||
				err != nil && (ExitCode(err) != fault.ExitUsage || fault.Advice(err) == "") {
				t.Errorf("%v", err)
			}
		})
	}
}
