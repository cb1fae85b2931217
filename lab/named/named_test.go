package named

import (
	"encoding/base64"
	"flag"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.txtar")

// files are those of a zone whose server has its files in dir.
func files(t *testing.T, dir string) []txtar.File {
	t.Helper()
	z := Zone{
		Name: "lab.example", TTL: 30 * time.Second, Server: Record{"dns", netip.MustParseAddr("172.29.255.53")},
		Records: []Record{{"api", netip.MustParseAddr("172.30.0.50")}},
		KeyFile: dir + "/lab.key", File: dir + "/lab.zone", RootFile: dir + "/root.zone",
	}
	var all []txtar.File
	for _, f := range []struct {
		name string
		make func() ([]byte, error)
	}{{"named.conf", z.Config}, {"lab.zone", z.Content}, {"root.zone", z.Root}} {
		data, err := f.make()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, txtar.File{Name: f.name, Data: data})
	}
	return all
}

func TestGolden(t *testing.T) {
	const golden = "testdata/golden.txtar"
	got := txtar.Format(&txtar.Archive{Comment: []byte("What the name server of a lab begins with.\n"), Files: files(t, "/etc/bind")})
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestKeysDiffer(t *testing.T) {
	first, second := string(NewKey()), string(NewKey())
	if first == second {
		t.Error("two labs have one key")
	}
	secret := regexp.MustCompile(`secret "(.*)"`).FindStringSubmatch(first)
	if len(secret) != 2 || !strings.Contains(first, "hmac-sha256") {
		t.Fatalf("the key is %s", first)
	}
	if data, err := base64.StdEncoding.DecodeString(secret[1]); err != nil || len(data) != keyBytes {
		t.Errorf("the secret has %d bytes, %v", len(data), err)
	}
}
