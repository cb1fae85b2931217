package command

import (
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"

	"github.com/replumb/replumb/internal/reporting/terminal"
)

type columns struct {
	heads []string
	paths []*jsonpath.JSONPath
}

// newColumns reads HEADER:PATH pairs, separated by commas. A path is that of kubectl: braces and
// the first dot may be left out.
func newColumns(spec string) (*columns, error) {
	c := &columns{}
	for _, column := range strings.Split(spec, ",") {
		head, path, ok := strings.Cut(column, ":")
		if !ok || head == "" || path == "" {
			return nil, fmt.Errorf("%s: %q is no column: write HEADER:.path", customColumns, column)
		}
		path = strings.TrimSuffix(strings.TrimPrefix(path, "{"), "}")
		if !strings.HasPrefix(path, ".") && !strings.HasPrefix(path, "[") {
			path = "." + path
		}
		parsed := jsonpath.New(head).AllowMissingKeys(true)
		if err := parsed.Parse("{" + path + "}"); err != nil {
			return nil, fmt.Errorf("%s: column %s: %w", customColumns, head, err)
		}
		c.heads, c.paths = append(c.heads, head), append(c.paths, parsed)
	}
	return c, nil
}

func (c *columns) PrintObj(o runtime.Object, w io.Writer) error {
	object, ok := o.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("%s: %T has no fields", customColumns, o)
	}
	items := []any{object.Object}
	if object.IsList() {
		items, _ = object.Object["items"].([]any)
	}
	rows := [][]string{c.heads}
	for _, item := range items {
		row, err := c.row(item)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	return terminal.Table(w, rows)
}

func (c *columns) row(item any) (row []string, err error) {
	for i, path := range c.paths {
		found, err := path.FindResults(item)
		if err != nil {
			return nil, fmt.Errorf("%s: column %s: %w", customColumns, c.heads[i], err)
		}
		var values []string
		for _, of := range found {
			for _, v := range of {
				values = append(values, fmt.Sprint(v.Interface()))
			}
		}
		if len(values) == 0 {
			values = []string{"<none>"}
		}
		row = append(row, strings.Join(values, ","))
	}
	return row, nil
}
