package servicecidr

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rooms are the packages whose errors end phases secure, agents, hop and return.
func rooms() []string {
	return []string{
		".", "hop", "ranges", "services", "../../network/bridge", "../../network/cidr", "../../network/overlapset", "../../network/ownaddress",
		"../../verify/agentset", "../../kube/workload", "../../safety/backup", "../../safety/freeze", "../../kube/stored",
	}
}

// unadvised are types and files with errors that have no advice of their own, and why.
func unadvised() map[string]string {
	return map[string]string{
		"UnavailableError": "check tells it as a finding, with its fix", "LockError": "the run has ended for whoever has the lock",
		"HostBitsError": "the schema refuses it", "ManifestError": "says what is too large, which nobody can change",
		"addr.go": "the schema refuses it", "chunk.go": "of a backup of what was not read, which no one can run into",
	}
}

// TestErrorsHaveAdvice: whoever meets an error in the middle of a move reads what to do. Types of
// errors have advice, and errors that wrap no other are made with a hint, or are asked for again.
func TestErrorsHaveAdvice(t *testing.T) {
	for _, dir := range rooms() {
		t.Run(dir, func(t *testing.T) { adviceIn(t, dir) })
	}
}

func adviceIn(t *testing.T, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	isErr, advises := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		if !isSource(e) {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, filepath.Join(dir, e.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv != nil {
				of := receiver(f)
				isErr[of] = isErr[of] || f.Name.Name == "Error"
				advises[of] = advises[of] || f.Name.Name == "Advice"
			}
		}
		for _, at := range bare(file) {
			if unadvised()[e.Name()] != "" {
				continue
			}
			t.Errorf("%s: an error without a hint", set.Position(at))
		}
	}
	for name := range isErr {
		if isErr[name] && !advises[name] && unadvised()[name] == "" {
			t.Errorf("%s: %s has no Advice", dir, name)
		}
	}
}

func isSource(e fs.DirEntry) bool {
	return strings.HasSuffix(e.Name(), ".go") && !strings.HasSuffix(e.Name(), "_test.go")
}

func receiver(f *ast.FuncDecl) string {
	of := f.Recv.List[0].Type
	if star, is := of.(*ast.StarExpr); is {
		of = star.X
	}
	if name, is := of.(*ast.Ident); is {
		return name.Name
	}
	return ""
}

// bare are the places where an error is made that wraps no other, outside of what adds a hint or
// has it asked again.
func bare(file *ast.File) (all []token.Pos) {
	var within []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			within = within[:len(within)-1]
			return true
		}
		if call, is := n.(*ast.CallExpr); is && makesError(call) && !slices.ContainsFunc(within, advised) {
			all = append(all, call.Pos())
		}
		within = append(within, n)
		return true
	})
	return all
}

func makesError(call *ast.CallExpr) bool {
	switch name(call.Fun) {
	case "errors.New":
		return true
	case "fmt.Errorf":
		text, is := call.Args[0].(*ast.BasicLit)
		return !is || !strings.Contains(text.Value, "%w")
	}
	return false
}

// advised reports whether a node adds what to do to the error in it, or is an error type, which has
// advice of its own.
func advised(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CompositeLit:
		return strings.HasSuffix(name(n.Type), "Hinted") || strings.HasSuffix(name(n.Type), "Error")
	case *ast.CallExpr:
		return name(n.Fun) == "engine.NotYet"
	case *ast.ValueSpec: // others wrap it
		return strings.HasPrefix(n.Names[0].Name, "Err")
	}
	return false
}

func name(n ast.Expr) string {
	switch n := n.(type) {
	case *ast.Ident:
		return n.Name
	case *ast.SelectorExpr:
		return name(n.X) + "." + n.Sel.Name
	}
	return ""
}
