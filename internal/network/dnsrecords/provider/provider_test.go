package provider

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/network/dnsrecords/route53"
)

const secret = "c2VjcmV0IG9mIGEgdGVzdA=="

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", `key "replumb" { algorithm hmac-sha256; secret "`+secret+`"; };`)
	bad := write("bad", `key "replumb" { secret "`+secret+`"; };`)
	open := write("open", `key "replumb" { algorithm hmac-sha256; secret "`+secret+`"; };`)
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	secrets := func(_ context.Context, namespace, name string) (map[string][]byte, error) {
		switch namespace + "/" + name {
		case "dns/good":
			return map[string][]byte{"name": []byte("replumb"), "algorithm": []byte("hmac-sha256"), "secret": []byte(secret)}, nil
		case "dns/bad":
			return map[string][]byte{"name": []byte("replumb"), "secret": []byte(secret)}, nil
		}
		return nil, errors.New("not found")
	}
	dynamic := func(secret, file string) v1alpha1.RecordProvider {
		p := &v1alpha1.RFC2136Provider{Server: "192.0.2.53:53", Zone: "example.com", TSIGKeyFile: file}
		if secret != "" {
			p.TSIGSecret = &v1alpha1.SecretReference{Namespace: "dns", Name: secret}
		}
		return v1alpha1.RecordProvider{RFC2136: p}
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(dir, "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(dir, "none"))
	for _, tt := range []struct {
		name    string
		spec    v1alpha1.RecordProvider
		keyed   bool
		problem string
	}{
		{"unsigned", dynamic("", ""), false, ""},
		{"a Secret", dynamic("good", ""), true, ""},
		{"a Secret that is not whole", dynamic("bad", ""), true, "secret dns/bad: it has no key algorithm"},
		{"no Secret", dynamic("none", ""), true, "reading Secret dns/none: not found"},
		{"a file", dynamic("", good), true, ""},
		{"a file that is not whole", dynamic("", bad), true, bad},
		{"a file that others can read", dynamic("", open), true, "open can be read by others (mode 0640)"},
		{"no file", dynamic("", filepath.Join(dir, "none")), true, "no such file"},
		{"people", v1alpha1.RecordProvider{Manual: &v1alpha1.ManualProvider{}}, false, ""},
		{"Route 53", v1alpha1.RecordProvider{Route53: &v1alpha1.Route53Provider{HostedZoneID: "Z1"}}, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := v1alpha1.RecordSpec{Name: "api.example.com", Type: v1alpha1.RecordA, Provider: tt.spec}
			got, err := Open(t.Context(), spec, &dnsrecords.Client{}, secrets)
			if tt.problem != "" {
				var whole *dnsrecords.Error
				if !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), tt.problem) ||
					strings.Contains(err.Error(), secret) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			switch p := got.(type) {
			case *dnsrecords.Dynamic:
				if tt.spec.RFC2136 == nil || (p.Key != nil) != tt.keyed {
					t.Errorf("got %+v", p)
				}
			case *route53.Zone:
				if tt.spec.Route53 == nil {
					t.Error("got Route 53")
				}
			case *dnsrecords.Manual:
				if tt.spec.Manual == nil {
					t.Error("got people")
				}
			}
		})
	}
}

// TestKeyIsElsewhere: a record whose key is on another machine is looked at as the others are, and
// says why it cannot be moved.
func TestKeyIsElsewhere(t *testing.T) {
	spec := v1alpha1.RecordSpec{
		Name: "api.example.com", Type: v1alpha1.RecordA, From: []string{"192.0.2.1"}, To: []string{"192.0.2.2"},
		Provider: v1alpha1.RecordProvider{RFC2136: &v1alpha1.RFC2136Provider{
			Server: "192.0.2.53:53", Zone: "example.com", TSIGKeyFile: filepath.Join(t.TempDir(), "update.key"),
		}},
	}
	dnsrecords.Default(&spec)
	all, err := Moves(t.Context(), []v1alpha1.RecordSpec{spec}, &dnsrecords.Client{}, nil, forgetful{})
	if err != nil || len(all) != 1 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	_, err = all[0].Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "update.key: no such file") {
		t.Errorf("it can be moved: %v", err)
	}
}

// forgetful is a memory that nothing was noted in.
type forgetful struct{ dnsrecords.Memory }

func (forgetful) Recall(context.Context, string, v1alpha1.RecordType) (*v1alpha1.RecordStatus, error) {
	return nil, nil
}
