package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/hack/manual/page"
)

var update = flag.Bool("update", false, "write the pages of reference in docs")

// source is the folder of the source, from here.
const source = "../.."

// TestReferenceIsUpToDate holds the pages of reference against the code.
func TestReferenceIsUpToDate(t *testing.T) {
	for name, text := range pages() {
		body, err := text(source)
		if err != nil {
			t.Fatal(err)
		}
		file, want := filepath.Join(source, "docs", name), []byte(page.Wrapped(body))
		if *update {
			if err := os.WriteFile(file, want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, want) {
			t.Errorf("docs/%s is not up to date (%v); run the tests of this package with -update", name, err)
		}
	}
}

// TestMarks: a comment says what a label or an annotation is on, and who sets it, or the page of them is refused.
func TestMarks(t *testing.T) {
	for comment, want := range map[string]mark{
		"AnnotationX, on a Node, is when.":                              {"annotation", "x/y", "Node", "replumb", "is when."},
		"AnnotationX, set by users on a Service, is its tier, or none.": {"annotation", "x/y", "Service", "users", "is its tier, or none."},
	} {
		if got, ok, err := markOf(constant{"AnnotationX", "x/y", comment}); !ok || err != nil || got != want {
			t.Errorf("%s: %+v, %t, %v", comment, got, ok, err)
		}
	}
	if _, _, err := markOf(constant{"AnnotationX", "x/y", "AnnotationX is when."}); err == nil {
		t.Error("a comment that does not say where is taken")
	}
	if _, ok, _ := markOf(constant{"FieldManager", "replumb", ""}); ok {
		t.Error("a constant that is no mark is taken for one")
	}
}

// TestManPages: there is one for every command that people see, and none for those that run in pods.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if err := manPages(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"replumb.1", "replumb-apply.1", "replumb-install.1", "replumb-backup.1"} {
		body, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{".TH \"REPLUMB", "SH SYNOPSIS"} {
			if !strings.Contains(string(body), text) {
				t.Errorf("%s lacks %q", name, text)
			}
		}
	}
	if pages, err := filepath.Glob(filepath.Join(dir, "replumb-agent*")); err != nil || len(pages) > 0 {
		t.Errorf("pages of hidden commands: %v, %v", pages, err)
	}
}
