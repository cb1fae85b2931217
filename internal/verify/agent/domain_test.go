package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDomainOf(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"search replumb-system.svc.k8s.example svc.k8s.example k8s.example\nnameserver 10.96.0.10\noptions ndots:5 timeout:1\n", "k8s.example"},
		{"search replumb-system.svc.cluster.local. svc.cluster.local\nnameserver 10.96.0.10\n", "cluster.local"},
		{"search example.com\nnameserver 192.0.2.1\n", ""},
		{"nameserver 192.0.2.1\n", ""},
	} {
		file := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := DomainOf(file); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.text, got, tt.want)
		}
	}
	if got := DomainOf(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("without a file: %q", got)
	}
}
