//go:build programs && long

package main

import (
	"image/png"
	"os"
	"path/filepath"
	"testing"
)

// TestDraw draws a result and a file that stands for a report. Both are made up, and the pictures are not kept.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	report := filepath.Join(dir, "report.html")
	if err := os.WriteFile(report, []byte("<!doctype html><title>report</title><h1>Report</h1>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := draw(t.Context(), demoResult, report, dir); err != nil {
		t.Fatal(err)
	}
	for name, width := range map[string]int{"move.png": moveWidth, "report.png": reportWidth} {
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		picture, err := png.Decode(file)
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := picture.Bounds().Dx(); got != width {
			t.Errorf("%s is %d pixels wide, want %d", name, got, width)
		}
		if name != "move.png" {
			continue
		}
		red, green := 0, 0
		for y := range picture.Bounds().Dy() {
			for x := range width {
				switch r, g, b, _ := picture.At(x, y).RGBA(); {
				case r>>8 == 0xb3 && g>>8 == 0x26 && b>>8 == 0x1e:
					red++
				case r>>8 == 0x12 && g>>8 == 0x71 && b>>8 == 0x4a:
					green++
				}
			}
		}
		if red < 100 || green < 10_000 || red > green/10 { // one second of 25 has losses, of one side
			t.Errorf("%d pixels are lost, %d answered", red, green)
		}
	}
}
