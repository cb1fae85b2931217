package main

import (
	"os"
	"strings"
	"testing"
)

// demoResult is what the tests of the demo write, so that both agree on its form. Its numbers are made up; no picture of it is kept.
const demoResult = "../../lab/demo/testdata/result.json"

func TestMovePage(t *testing.T) {
	result, err := os.ReadFile(demoResult)
	if err != nil {
		t.Fatal(err)
	}
	page, err := movePage(result)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Services moved by replumb: 1,400 requests, 0 lost", "created again: 500 requests, 14 lost", "began =  5", "ended =  15",
		"make demo</code> of 1 January 1970",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestNothingIsDrawnOfNothing(t *testing.T) {
	for text, want := range map[string]string{
		`{"replumb": {"requests": 7}}`:                 "it has no seconds",
		`{"seconds": {"replumb": [{"answered": 10}]}}`: "it has no seconds",
		`no JSON`: "invalid character",
	} {
		if page, err := movePage([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, and a page of %d bytes", text, err, len(page))
		}
	}
	if err := draw(t.Context(), "", "", t.TempDir()); err == nil || !strings.Contains(err.Error(), "make demo records a result") {
		t.Errorf("%v", err)
	}
}
