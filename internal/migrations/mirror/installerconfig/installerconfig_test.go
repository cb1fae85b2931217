package installerconfig

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/testing/golden"
)

// wish is Overrides as a file has it.
type wish struct {
	Name     string   `json:"name"`
	Endpoint string   `json:"endpoint"`
	Services []string `json:"services"`
	Pods     []string `json:"pods"`
	Nodes    []string `json:"nodes"`
}

func wanted(t *testing.T, body []byte) Overrides {
	t.Helper()
	var w wish
	if err := yaml.UnmarshalStrict(body, &w); err != nil {
		t.Fatal(err)
	}
	out := Overrides{Name: w.Name, Endpoint: w.Endpoint}
	for to, texts := range map[*[]netip.Prefix][]string{&out.Services: w.Services, &out.Pods: w.Pods, &out.Nodes: w.Nodes} {
		for _, text := range texts {
			*to = append(*to, netip.MustParsePrefix(text))
		}
	}
	return out
}

func made(t *testing.T, in map[string][]byte) ([]byte, error) {
	t.Helper()
	w := wanted(t, in["wanted.yaml"])
	if kops, ok := in["kops.yaml"]; ok {
		return KOps(kops, w)
	}
	k := Kubeadm{Cluster: string(in["cluster.yaml"]), Kubelet: string(in["kubelet.yaml"]), Proxy: string(in["proxy.yaml"])}
	return k.Configuration(w)
}

// hintOf what a person did wrong; empty, if it is another error.
func hintOf(err error) string {
	var bad *Error
	if !errors.As(err, &bad) {
		return ""
	}
	return bad.Advice()
}

// TestGolden makes configurations of what sources have, or says why not.
func TestGolden(t *testing.T) {
	golden.Run(t, "testdata/golden/*.txtar", func(t *testing.T, in map[string][]byte) golden.Sections {
		t.Helper()
		return golden.Sections{
			"mirror": func() string {
				out, err := made(t, in)
				if err != nil {
					return "error: " + err.Error() + "\nhint: " + hintOf(err) + "\n"
				}
				return string(out)
			},
		}
	})
}

// TestNothingLeaks: what the files mark as a secret, or as the source's own, is in no mirror's
// configuration, and what they mark as to be kept is; all of it is YAML. The same configuration
// made once more is the same.
func TestNothingLeaks(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	seen := 0
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		in := map[string][]byte{}
		for _, f := range archive.Files {
			in[f.Name] = f.Data
		}
		out, err := made(t, in)
		if err != nil {
			continue
		}
		seen++
		if again, err := made(t, in); err != nil || string(again) != string(out) {
			t.Errorf("%s: another one each time: %v", file, err)
		}
		for doc := range strings.SplitSeq(string(out), "\n---\n") {
			var any map[string]any
			if err := yaml.UnmarshalStrict([]byte(doc), &any); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
		for _, mark := range []string{"s3cr3t", "hunter2", "SOURCE-OWN"} {
			if strings.Contains(string(out), mark) {
				t.Errorf("%s: %q is in the mirror's configuration", file, mark)
			}
		}
	}
	if seen < 3 { //nolint:mnd // kubeadm of both versions, and kOps
		t.Errorf("only %d configurations were made", seen)
	}
}

func TestWantedRefuses(t *testing.T) {
	p := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	for _, tt := range []struct {
		w    Overrides
		says string
	}{
		{Overrides{}, `"" is no name`},
		{Overrides{Name: "Mirror"}, `"Mirror" is no name`},
		{Overrides{Name: "a..b"}, "is no name"},
		{Overrides{Name: "m\nx: y"}, "is no name"},
		{Overrides{Name: strings.Repeat("a", 300)}, "is no name"},
		{Overrides{Name: "m", Endpoint: "https://api/"}, "is no endpoint"},
		{Overrides{Name: "m", Services: p("10.0.0.0/8"), Pods: p("10.1.0.0/16")}, "the range of Services 10.0.0.0/8 and that of pods 10.1.0.0/16 overlap"},
		{Overrides{Name: "m", Services: p("10.0.0.0/16"), Nodes: p("10.0.1.0/24")}, "the range of Services"},
		{Overrides{Name: "m", Pods: p("10.0.0.0/16"), Nodes: p("10.0.1.0/24")}, "the range of pods"},
	} {
		err := tt.w.Validate()
		if err == nil || !strings.Contains(err.Error(), tt.says) || hintOf(err) == "" {
			t.Errorf("%+v: %v, want %q", tt.w, err, tt.says)
		}
	}
}

func TestPlace(t *testing.T) {
	for _, tt := range []struct{ r, of, in, want string }{
		{"172.20.32.0/19", "172.20.0.0/16", "10.9.0.0/16", "10.9.32.0/19"},
		{"172.20.32.0/19", "172.20.0.0/16", "10.0.0.0/8", "10.0.32.0/19"},
		{"172.20.32.0/19", "172.20.0.0/16", "10.9.0.0/20", ""},
		{"192.168.0.0/24", "172.20.0.0/16", "10.9.0.0/16", ""},
		{"fd00::/64", "fd00::/48", "fd01::/48", ""},
	} {
		got, ok := place(netip.MustParsePrefix(tt.r), []netip.Prefix{netip.MustParsePrefix(tt.of)}, netip.MustParsePrefix(tt.in))
		if ok != (tt.want != "") || ok && got.String() != tt.want {
			t.Errorf("%s of %s in %s: %v %t", tt.r, tt.of, tt.in, got, ok)
		}
	}
}

func TestFlag(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		out         bool
		says        string
	}{
		{"feature-gates", "A=true", false, ""},
		{"enable-admission-plugins", "NodeRestriction", false, ""},
		{"oidc-issuer-url", "https://id.example.com", false, ""},
		{"service-account-max-token-expiration", "24h", false, ""},
		{"enable-bootstrap-token-auth", "true", false, ""},
		{"token-auth-file", "/etc/tokens", true, fillIn},
		{"authentication-token-webhook-config-file", "/etc/webhook", true, fillIn},
		{"audit-policy-file", "/etc/audit.yaml", false, fillIn},
		{"encryption-provider-config", "/etc/enc.yaml", false, fillIn},
		{"etcd-servers", "https://192.0.2.1:2379", true, "its own"},
		{"etcd-servers", "https://192.0.2.1:2379", true, ""},
		{"service-account-issuer", "https://oidc.example.com", true, fillIn},
		{"service-cluster-ip-range", "10.96.0.0/12", true, "networking"},
		{"audit-webhook", "https://u:hunter2@e.com", true, "password"},
	} {
		why, out := flag(tt.name, tt.value)
		if out != tt.out || tt.says == "" && !out && why != "" || tt.says != "" && tt.says != "its own" && !strings.Contains(why, tt.says) {
			t.Errorf("%s: %q, out %t", tt.name, why, out)
		}
	}
}

// FuzzKOps: whatever a file holds, what comes of it is YAML, and the words of secrets are not in
// it.
func FuzzKOps(f *testing.F) {
	body, err := os.ReadFile("testdata/golden/kops.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range txtar.Parse(body).Files {
		if file.Name == "kops.yaml" {
			f.Add(file.Data)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		out, err := KOps(body, Overrides{Name: "mirror.example.com"})
		if err != nil {
			return
		}
		if _, err := documents(out); err != nil {
			t.Errorf("%v in\n%s", err, out)
		}
	})
}
