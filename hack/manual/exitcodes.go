package main

import (
	"fmt"
	"strings"

	"github.com/replumb/replumb/hack/manual/page"
)

// exitFile has the exit codes, with what they mean.
const exitFile = "internal/engine/fault/fault.go"

// exitCodes is the page of the exit codes.
func exitCodes(root string) (string, error) {
	all, err := constantsOf(root + "/" + exitFile)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Exit codes\n\nOf every command, for scripts. " + generated + "\n\n| code | meaning |\n|---|---|\n")
	for _, c := range all {
		_, meaning, ok := strings.Cut(c.comment, " says that ")
		if !ok {
			return "", fmt.Errorf("%s: the comment of %s does not say what the code says", exitFile, c.name)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", c.value, page.Cell(strings.ToUpper(meaning[:1])+meaning[1:]))
	}
	return b.String() + "\n`--help` of a [command](reference.md) says what its codes mean, where it is more than this.\n", nil
}
