package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/replumb/replumb/hack/manual/page"
)

// labelsFile has the labels and annotations, with what they mean.
const labelsFile = "api/v1alpha1/labels.go"

// constant is a constant of the code, with its comment.
type constant struct {
	name, value, comment string
}

// constantsOf are those of a file, in order. The comment of a constant begins with its name, as godoc wants it.
func constantsOf(file string) ([]constant, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var all []constant
	for _, decl := range f.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			spec := s.(*ast.ValueSpec) // what else would a group of constants have
			lit, ok := spec.Values[0].(*ast.BasicLit)
			if !ok {
				continue
			}
			value := lit.Value
			if lit.Kind == token.STRING {
				if value, err = strconv.Unquote(value); err != nil {
					return nil, err
				}
			}
			all = append(all, constant{spec.Names[0].Name, value, strings.Join(strings.Fields(spec.Doc.Text()), " ")})
		}
	}
	return all, nil
}

// placed is how the comment of a label, an annotation or a taint begins: what it is on, and that it is users who set it, if it is.
var placed = regexp.MustCompile(`^\w+, (set by users )?on (?:an? |the )?(.+?), ((?:is|are|has|says|names|keeps|counts|lets|tells) .+)$`)

// mark is a label, an annotation or a taint.
type mark struct {
	kind, key string
	// on is what has it, writer who writes it.
	on, writer, meaning string
}

// markOf reads a constant; ok is false for one that is no mark.
func markOf(c constant) (m mark, ok bool, err error) {
	for _, kind := range []string{"Label", "Annotation", "Taint"} {
		if strings.HasPrefix(c.name, kind) && strings.Contains(c.value, "/") {
			m.kind = strings.ToLower(kind)
		}
	}
	if m.kind == "" {
		return m, false, nil
	}
	parts := placed.FindStringSubmatch(c.comment)
	if parts == nil {
		return m, true, fmt.Errorf("%s: the comment of %s does not say what it is on: %q", labelsFile, c.name, c.comment)
	}
	m.key, m.on, m.writer, m.meaning = c.value, parts[2], "replumb", parts[3]
	if parts[1] != "" {
		m.writer = "users"
	}
	return m, true, nil
}

// annotations is the page of the labels, annotations and taints, those that users set first.
func annotations(root string) (string, error) {
	all, err := constantsOf(root + "/" + labelsFile)
	if err != nil {
		return "", err
	}
	var byUsers, byReplumb strings.Builder
	var values []string
	for _, c := range all {
		m, ok, err := markOf(c)
		if err != nil {
			return "", err
		}
		if ok {
			to := &byReplumb
			if m.writer == "users" {
				to = &byUsers
			}
			fmt.Fprintf(to, "| `%s` | %s | %s | %s | %s |\n", m.key, m.kind, page.Cell(m.on), m.writer, page.Cell(m.meaning))
		}
		if of := valueOf(c); of != "" {
			_, meaning, _ := strings.Cut(c.comment, " ")
			values = append(values, fmt.Sprintf("| `%s` | `%s` | %s |\n", of, c.value, page.Cell(meaning)))
		}
	}
	slices.Sort(values)
	const head = "| name | kind | on | written by | meaning |\n|---|---|---|---|---|\n"
	return "# Labels, annotations and taints\n\nWhat replumb writes on objects, and what it reads that users set. " + generated +
		"\n\n## Set by users\n\n" + head + byUsers.String() +
		"\n## Written by replumb\n\nDo not write these yourself: replumb goes by them.\n\n" + head + byReplumb.String() +
		"\n## Values\n\nOf those that have a fixed set of values.\n\n| name | value | meaning |\n|---|---|---|\n" + strings.Join(values, ""), nil
}

// valueOf is the name of the label or annotation that a constant is a value of; empty if it is none.
func valueOf(c constant) string {
	switch {
	case strings.HasPrefix(c.name, "Role"):
		return "replumb.dev/role"
	case strings.HasPrefix(c.name, "Strategy"):
		return "replumb.dev/strategy"
	case c.name == "HostAgent", c.name == "NoAgents":
		return "replumb.dev.node-restriction.kubernetes.io/agents"
	}
	return ""
}
