package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/testing/pki"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, body []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca, err := pki.NewCA("etcd-ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.Request{CommonName: "client"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := ca.Issue(pki.Request{CommonName: "other"})
	if err != nil {
		t.Fatal(err)
	}
	good := Files{CA: write("ca.crt", ca.Cert), Cert: write("client.crt", pair.Cert), Key: write("client.key", pair.Key)}
	if config, err := good.Load(); err != nil || len(config.Certificates) != 1 {
		t.Fatalf("%+v: %v", config, err)
	}
	open := write("open.key", pair.Key)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		files   Files
		problem string
	}{
		"open to all":  {Files{good.CA, good.Cert, open}, "open.key: it can be read by others (mode 0644)"},
		"not named":    {Files{CA: good.CA, Cert: good.Cert}, "is not named"},
		"not there":    {Files{filepath.Join(dir, "no.crt"), good.Cert, good.Key}, "no.crt: it cannot be read: no such file or directory"},
		"mixed up":     {Files{good.CA, good.Key, good.Cert}, "client.key: it has no PEM block of type CERTIFICATE"},
		"another key":  {Files{good.CA, good.Cert, write("other.key", other.Key)}, "client.crt: with the key " + dir},
		"broken":       {Files{write("empty.crt", nil), good.Cert, good.Key}, "empty.crt: it has no PEM block"},
		"no authority": {Files{write("bad.crt", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")), good.Cert, good.Key}, "bad.crt: its certificates"},
	} {
		_, err := tt.files.Load()
		var wrong *FileError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), tt.problem) || wrong.Hint == "" ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
