package spec

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestExamplesAreValid reads every Migration in examples, wherever replumb is started.
func TestExamplesAreValid(t *testing.T) {
	var files []string
	for _, depth := range []string{"*", "*/*"} {
		found, err := filepath.Glob("../../examples/" + depth + "/*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	valid := 0
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(body, []byte("kind: Migration\n")) {
			continue
		}
		if _, err := ReadAll(Source{Name: file, Body: body}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		valid++
	}
	if valid == 0 {
		t.Error("there are no examples")
	}
}
