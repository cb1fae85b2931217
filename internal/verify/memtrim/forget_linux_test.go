package memtrim

import (
	"bytes"
	"os"
	"strconv"
	"testing"
)

func TestUnchanging(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       bool
	}{
		{"code", "00400000-0207f000 r-xp 00000000 fe:00 9986064                            /bin/replumb", true},
		{"constants", "0207f000-03de0000 r--p 01c7f000 fe:00 9986064                            /bin/replumb", true},
		{"variables", "03de0000-03f0a000 rw-p 039e0000 fe:00 9986064                            /bin/replumb", false},
		{"another file", "00400000-0207f000 r-xp 00000000 fe:00 9986064                            /bin/kubectl", false},
		{"no file", "e23e5c00000-e23e6c00000 rw-p 00000000 00:00 0 ", false},
		{"no range", "00400000 r-xp 00000000 fe:00 9986064                            /bin/replumb", false},
		{"empty range", "00400000-00400000 r-xp 00000000 fe:00 9986064                            /bin/replumb", false},
		{"nothing", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			from, to, got := unchanging(tt.line, "/bin/replumb")
			if got != tt.want || got && to <= from {
				t.Errorf("unchanging(%q) = %x, %x, %v", tt.line, from, to, got)
			}
		})
	}
}

// A process that holds no page of its program goes on, with fewer of them.
func TestTrim(t *testing.T) {
	before := filePages(t)
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	if after := filePages(t); after >= before {
		t.Errorf("%d kB of files are resident, %d kB were before", after, before)
	}
}

// filePages are those of files that are resident, in kB.
func filePages(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if fields := bytes.Fields(line); len(fields) == 3 && string(fields[0]) == "RssFile:" {
			n, err := strconv.Atoi(string(fields[1]))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no RssFile in /proc/self/status")
	return 0
}
