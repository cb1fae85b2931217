package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// customColumns begins the format of kubectl get that prints a table by paths, such as NAME:.metadata.name.
const customColumns = "custom-columns"

// objectHead makes a document one that kubectl's printers take, alone and in a List.
type objectHead struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   objectName `json:"metadata"`
}

type objectName struct {
	Name string `json:"name"`
}

// headed is the head of a document of a kind about a Migration.
func headed(kind, migration string) objectHead {
	return objectHead{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Metadata: objectName{Name: migration}}
}

// documentFlag is outputFlag for commands that also print as kubectl get does: by templates, such as jsonpath=..., and by custom-columns=...
func (a *app) documentFlag(cmd *cobra.Command, formats ...string) *genericclioptions.PrintFlags {
	flags := genericclioptions.NewPrintFlags("")
	flags.OutputFormat = &a.output
	all := slices.Concat(formats, []string{customColumns}, flags.TemplatePrinterFlags.AllowedFormats())
	cmd.Flags().StringVarP(&a.output, "output", "o", formats[0], formatsPrefix+strings.Join(all, ", "))
	flags.TemplatePrinterFlags.AddFlags(cmd)
	flags.OutputFlagSpecified = func() bool { return cmd.Flags().Changed("output") }
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !flags.OutputFlagSpecified() {
			a.output = formats[0] // and not what the flag of the command is by default that was declared last
		}
		if !flags.OutputFlagSpecified() && *flags.TemplatePrinterFlags.TemplateArgument != "" {
			a.output = "go-template" // as kubectl takes --template alone
		}
		if slices.Contains(formats, a.output) {
			return nil
		}
		_, err := printerOf(a.output, flags)
		switch {
		case genericclioptions.IsNoCompatiblePrinterError(err):
			return &UsageError{
				Problem: fmt.Sprintf("output format %q is not known", a.output), Hint: "use one of " + strings.Join(all, ", "),
			}
		case err != nil:
			return &UsageError{Problem: err.Error(), Hint: "kubectl explains them: https://kubernetes.io/docs/reference/kubectl/jsonpath/"}
		}
		return nil
	}
	return flags
}

// printerOf a format that is neither a table nor a list of names.
func printerOf(format string, flags *genericclioptions.PrintFlags) (printers.ResourcePrinter, error) {
	if spec, ok := strings.CutPrefix(format, customColumns+"="); ok {
		return newColumns(spec)
	}
	return flags.TemplatePrinterFlags.ToPrinter(format)
}

// printDocument writes a value in a format that is not a table: json, yaml, a template or columns.
func printDocument(w io.Writer, format string, flags *genericclioptions.PrintFlags, v any) error {
	if format == "json" || format == "yaml" { // with the fields in the order in which people read them
		return terminal.Document(w, format, v)
	}
	printer, err := printerOf(format, flags)
	if err != nil {
		return err
	}
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	content := map[string]any{}
	if err := utiljson.Unmarshal(body, &content); err != nil { // which keeps whole numbers whole
		return fmt.Errorf("reading JSON: %w", err)
	}
	return printer.PrintObj(&unstructured.Unstructured{Object: content}, w)
}

// list is several documents as one, as kubectl prints it.
type list[T any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []T    `json:"items"`
}

func listOf[T any](items []T) list[T] {
	return list[T]{APIVersion: "v1", Kind: "List", Items: append([]T{}, items...)}
}

// oneDocument is that of the only page, or a List.
func oneDocument(pages []*statusDocument) any {
	if len(pages) == 1 {
		return pages[0]
	}
	return listOf(pages)
}
