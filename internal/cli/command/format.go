package command

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
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

const (
	// FormatsPrefix begins the usage of every -o that takes formats; the formats follow.
	FormatsPrefix = "output format: "
	// customColumns begins the format of kubectl get that prints paths, such as
	// NAME:.metadata.name.
	customColumns = "custom-columns"
)

// Format is the -o of one command. The zero Format is one for people.
type Format struct {
	Name      string
	templates *genericclioptions.PrintFlags
}

// ForPeople reports whether the output is text, and no document.
func (f Format) ForPeople() bool {
	return slices.Contains([]string{"", "table", "wide", "name"}, f.Name)
}

// Declare adds -o with some formats, of which the first is the default.
func (f *Format) Declare(cmd *cobra.Command, formats ...string) {
	cmd.Flags().StringVarP(&f.Name, "output", "o", formats[0], FormatsPrefix+strings.Join(formats, ", "))
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(formats, f.Name) {
			return unknownFormat(f.Name, formats)
		}
		if before != nil {
			return before(cmd, args)
		}
		return nil
	}
}

func unknownFormat(name string, formats []string) error {
	hint := "use one of " + strings.Join(formats, ", ")
	if meant := lists.Closest(name, formats); meant != "" {
		hint = "did you mean " + meant + "?"
	}
	return &UsageError{Problem: fmt.Sprintf("output format %q is not known", name), Hint: hint}
}

// DeclareDocument is Declare for commands that also print as kubectl get does: by templates, such
// as jsonpath=..., and by custom-columns=...
func (f *Format) DeclareDocument(cmd *cobra.Command, formats ...string) {
	f.templates = genericclioptions.NewPrintFlags("")
	f.templates.OutputFormat = &f.Name
	templates := f.templates.TemplatePrinterFlags
	all := slices.Concat(formats, []string{customColumns}, templates.AllowedFormats())
	cmd.Flags().StringVarP(&f.Name, "output", "o", formats[0], FormatsPrefix+strings.Join(all, ", "))
	templates.AddFlags(cmd)
	f.templates.OutputFlagSpecified = func() bool { return cmd.Flags().Changed("output") }
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("output") && *templates.TemplateArgument != "" {
			f.Name = "go-template" // as kubectl takes --template alone
		}
		if slices.Contains(formats, f.Name) {
			return nil
		}
		_, err := f.printer()
		switch {
		case genericclioptions.IsNoCompatiblePrinterError(err):
			return unknownFormat(f.Name, all)
		case err != nil:
			return &UsageError{
				Problem: err.Error(), Hint: "kubectl explains them: https://kubernetes.io/docs/reference/kubectl/jsonpath/",
			}
		}
		return nil
	}
}

func (f *Format) printer() (printers.ResourcePrinter, error) {
	if spec, ok := strings.CutPrefix(f.Name, customColumns+"="); ok {
		return newColumns(spec)
	}
	return f.templates.TemplatePrinterFlags.ToPrinter(f.Name)
}

// Print writes a document: as JSON, as YAML, by a template or in columns.
func (f *Format) Print(w io.Writer, v any) error {
	if f.Name == "json" || f.Name == "yaml" { // with the fields in the order in which people read them
		return terminal.Document(w, f.Name, v)
	}
	printer, err := f.printer()
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

// DocumentHead makes a document one that kubectl's printers take, alone and in a List.
type DocumentHead struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
}

// Metadata of a document.
type Metadata struct {
	Name string `json:"name"`
}

// HeadOf a document of a kind about a Migration or a Fleet.
func HeadOf(kind, name string) DocumentHead {
	return DocumentHead{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Metadata: Metadata{Name: name}}
}

// List is several documents as one, as kubectl prints it.
type List[T any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []T    `json:"items"`
}

// ListOf documents; of none it has no item, and not null.
func ListOf[T any](items []T) List[T] {
	return List[T]{APIVersion: "v1", Kind: "List", Items: append([]T{}, items...)}
}
