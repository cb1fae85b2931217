package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference.md")

// TestReferenceIsUpToDate holds the page of commands against the commands.
func TestReferenceIsUpToDate(t *testing.T) {
	const docs = "../../docs"
	if *update {
		if err := write("markdown", docs); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(filepath.Join(docs, "reference.md"))
	if err != nil || string(have) != reference(command()) {
		t.Errorf("docs/reference.md is not up to date (%v); run the tests of this package with -update", err)
	}
}

// TestManPages: there is one for every command that people see, and none for those that run in pods.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if err := write("man", dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"replumb.1", "replumb-apply.1", "replumb-install.1", "replumb-backup-export.1"} {
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

// TestUnknownFormat writes nothing.
func TestUnknownFormat(t *testing.T) {
	if err := write("pdf", t.TempDir()); err == nil || !strings.Contains(err.Error(), `"pdf"`) {
		t.Errorf("%v", err)
	}
}
