package haproxy

import (
	"flag"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.txtar")

func servers(texts ...string) (all []Server) {
	for _, text := range texts {
		name, address, _ := strings.Cut(text, "=")
		all = append(all, Server{name, netip.MustParseAddrPort(address)})
	}
	return all
}

// configs are one of each kind.
func configs(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	c := Config{
		Stats: dir + "/api.sock", State: dir + "/api.state", Listen: 6443,
		Servers: servers("cp2=172.30.0.9:6443", "cp1=172.30.0.10:6443", "cp4=172.31.0.10:6443"),
	}
	api, err := c.API()
	if err != nil {
		t.Fatal(err)
	}
	known := "1\n# be_id be_name srv_id srv_name srv_addr ...\n3 control-planes 1 cp1 172.30.0.10 2 0 1 1 2 15 3 3 6 0 0 0 - 6443 - 0 0 - - 0\n" +
		"3 control-planes 2 cp3 172.30.0.8 2 0 1 1 2 15 3 3 6 0 0 0 - 6443 - 0 0 - - 0\n\n"
	files := map[string][]byte{"api.cfg": api, "api.state": c.Handover([]byte(known), ControlPlanes)}
	c = Config{Stats: dir + "/ingress.sock", State: dir + "/ingress.state", Listen: 80, HealthPort: 32080}
	if files["empty.cfg"], err = c.Ingress(); err != nil {
		t.Fatal(err)
	}
	c.Servers = servers("node1=172.30.0.11:30080")
	if files["ingress.cfg"], err = c.Ingress(); err != nil {
		t.Fatal(err)
	}
	files["ingress.state"] = c.Handover(nil, Local, Any)
	return files
}

func TestGolden(t *testing.T) {
	const golden = "testdata/golden.txtar"
	got := &txtar.Archive{Comment: []byte("A balancer before API servers, one before nodes, and one in a network without any.\n")}
	files := configs(t, "/run")
	for _, name := range []string{"api.cfg", "api.state", "ingress.cfg", "ingress.state", "empty.cfg"} {
		got.Files = append(got.Files, txtar.File{Name: name, Data: files[name]})
	}
	if *update {
		if err := os.WriteFile(golden, txtar.Format(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if text := txtar.Format(got); string(text) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

func TestStatuses(t *testing.T) {
	got, err := Statuses([]byte("# pxname,svname,scur,stot,status,check_status,\n" +
		"api,FRONTEND,2,7,OPEN,,\n" +
		"control-planes,cp1,2,6,UP 1/2,* L7OK,\ncontrol-planes,cp2,0,1,DOWN,L4CON,\ncontrol-planes,BACKEND,2,7,UP,,\n"))
	want := []Status{
		{Backend: "control-planes", Server: "cp1", Up: true, Why: "* L7OK", Now: 2, Total: 6},
		{Backend: "control-planes", Server: "cp2", Why: "L4CON", Total: 1},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := Statuses(nil); err == nil {
		t.Error("nothing is a table")
	}
}
