package probe

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	tests := []struct {
		text string
		want Target
	}{
		{"http://a", Target{Kind: HTTP, Address: "a:80", Path: "/"}},
		{"http://a:8080/b/c?d=e%20f", Target{Kind: HTTP, Address: "a:8080", Path: "/b/c?d=e%20f"}},
		{"http://a?b=c", Target{Kind: HTTP, Address: "a:80", Path: "/?b=c"}},
		{"https://a/b", Target{Kind: HTTP, TLS: true, Address: "a:443", Path: "/b"}},
		{"https://[fd00::1]:8443", Target{Kind: HTTP, TLS: true, Address: "[fd00::1]:8443", Path: "/"}},
		{"tcp://10.96.0.1:443", Target{Kind: TCP, Address: "10.96.0.1:443"}},
		{"tcp://[::1]:443", Target{Kind: TCP, Address: "[::1]:443"}},
		{"udp://a:9001", Target{Kind: UDP, Address: "a:9001"}},
		{"stream://a:9000", Target{Kind: Stream, Address: "a:9000"}},
		{"dns://a.b.svc", Target{Kind: DNS, Address: "a.b.svc"}},
		{"dns://a@10.96.0.10", Target{Kind: DNS, Address: "a", Resolver: "10.96.0.10:53"}},
		{"dns://a@10.96.0.10:5353", Target{Kind: DNS, Address: "a", Resolver: "10.96.0.10:5353"}},
		{"dns://a@fd00::10", Target{Kind: DNS, Address: "a", Resolver: "[fd00::10]:53"}},
		{"dns://a@[fd00::10]:53", Target{Kind: DNS, Address: "a", Resolver: "[fd00::10]:53"}},
	}
	for _, tt := range tests {
		got, err := ParseTarget(tt.text)
		tt.want.Name = tt.text
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, %v; want %+v", tt.text, got, err, tt.want)
		}
		if _, err := (Config{Targets: []Target{got}}).Resolve(""); err != nil {
			t.Errorf("%s cannot be probed: %v", tt.text, err)
		}
	}
}

func TestParseTargetRefuses(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", "no scheme"},
		{"a:80", "no scheme"},
		{"ftp://a", `scheme "ftp" is not one of`},
		{"http://", "not host:port"},
		{"http://u:p@a/", "names a user"},
		{"http://a/#b", "fragment"},
		{"http://a:b/", "invalid port"},
		{"http://a:0/", `port "0"`},
		{"http://a:65536/", `port "65536"`},
		{"tcp://a", "not host:port"},
		{"tcp://a:http", `port "http"`},
		{"tcp://a:1/b", `port "1/b"`},
		{"udp://:1", "not host:port"},
		{"stream://a b:1", "not host:port"},
		{"dns://", "not a name"},
		{"dns://a:53", "not a name"},
		{"dns://a/b", "not a name"},
		{"dns://a@b", `server "b"`},
		{"dns://a@10.0.0.1:0", `server "10.0.0.1:0"`},
	}
	for _, tt := range tests {
		if _, err := ParseTarget(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want an error with %q", tt.text, err, tt.want)
		}
	}
}

// FuzzParseTarget: whatever is accepted has all that its kind needs.
func FuzzParseTarget(f *testing.F) {
	for _, text := range []string{
		"http://a", "https://a:1/b?c", "tcp://[::1]:443", "udp://a:1", "stream://a:1", "dns://a@[::1]:53", "dns://a", "http://%zz", "x",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		target, err := ParseTarget(text)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Errorf("%q: an error that says nothing", text)
			}
			return
		}
		if target.Name != text || target.Kind == "" || target.Address == "" {
			t.Errorf("%q: %+v", text, target)
		}
		if target.Kind == HTTP && !strings.HasPrefix(target.Path, "/") {
			t.Errorf("%q: path %q", text, target.Path)
		}
	})
}
