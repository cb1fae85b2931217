package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/internal/reporting/terminal"
)

// documentFlag is outputFlag for commands that also print by templates, as kubectl get does: jsonpath=..., go-template=...
func (a *app) documentFlag(cmd *cobra.Command, formats ...string) *genericclioptions.KubeTemplatePrintFlags {
	templates := genericclioptions.NewKubeTemplatePrintFlags()
	usage := formatsPrefix + strings.Join(append(formats, templates.AllowedFormats()...), ", ")
	cmd.Flags().StringVarP(&a.output, "output", "o", formats[0], usage)
	templates.AddFlags(cmd)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if slices.Contains(formats, a.output) {
			return nil
		}
		_, err := templates.ToPrinter(a.output)
		switch {
		case genericclioptions.IsNoCompatiblePrinterError(err):
			return &UsageError{
				Problem: fmt.Sprintf("output format %q is not known", a.output),
				Hint:    "use one of " + strings.Join(append(formats, templates.AllowedFormats()...), ", "),
			}
		case err != nil:
			return &UsageError{Problem: err.Error(), Hint: "kubectl explains them: https://kubernetes.io/docs/reference/kubectl/jsonpath/"}
		}
		return nil
	}
	return templates
}

// printDocument writes a value in a format that is not a table: json, yaml or a template.
func printDocument(w io.Writer, format string, templates *genericclioptions.KubeTemplatePrintFlags, v any) error {
	if format == "json" || format == "yaml" {
		return terminal.Document(w, format, v)
	}
	printer, err := templates.ToPrinter(format)
	if err != nil {
		return err
	}
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	content := map[string]any{}
	if err := json.Unmarshal(body, &content); err != nil {
		return fmt.Errorf("reading JSON: %w", err)
	}
	return printer.PrintObj(&unstructured.Unstructured{Object: content}, w)
}

// documents are one document: that of the only one, or a List as kubectl prints it.
type documents struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []page `json:"items"`
}

func oneDocument(pages []page) any {
	if len(pages) == 1 {
		return pages[0]
	}
	return documents{APIVersion: "v1", Kind: "List", Items: append([]page{}, pages...)}
}
