package references

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func scanner(t testing.TB) *Scanner {
	t.Helper()
	s, err := New(
		[]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
		[]netip.Prefix{netip.MustParsePrefix("172.24.0.0/16"), netip.MustParsePrefix("fd00:24::/112")},
		[]netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.3.7"), netip.MustParseAddr("fd00:96::7")},
	)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestValues(t *testing.T) {
	s := scanner(t)
	for text, want := range map[string]string{
		// whole words, with what usually stands around them
		"10.96.0.1":                    "10.96.0.1",
		"http://10.96.0.1:80/x":        "10.96.0.1",
		"https://u:p@10.96.0.1/24?a=b": "10.96.0.1",
		"a,10.96.0.1;10.96.3.7|b":      "10.96.0.1 10.96.3.7",
		"host:10.96.0.1:80":            "10.96.0.1",
		"It is 10.96.0.1.":             "10.96.0.1",
		"10.96.0.1: kubernetes":        "10.96.0.1",
		"--listen=10.96.0.1":           "10.96.0.1",
		"10.96.0.1-10.96.0.9":          "10.96.0.1",
		"\"10.96.0.1\"\n'10.96.3.7'\n": "10.96.0.1 10.96.3.7",
		"10.96.0.1 10.96.0.1":          "10.96.0.1",
		"[fd00:96::7]:443":             "fd00:96::7",
		"FD00:0096:0::7":               "FD00:0096:0::7",
		"fd00:96::7, and more":         "fd00:96::7",
		"::ffff:10.96.0.1":             "::ffff:10.96.0.1",
		"10.96.0.1/32":                 "10.96.0.1/32",
		"10.96.3.7#share#x":            "10.96.3.7",
		// not the same address
		"10.96.0.10 110.96.0.1 10.96.0.1.2":  "",
		"10.96.0.1.nip.io v10.96.0.1":        "",
		"1.10.96.0.1 10.96.0.1a x10.96.0.1x": "",
		"10.96.0.1_2 _10.96.0.1":             "",
		"010.96.0.1 10.96.00.1":              "",
		"é10.96.0.1é":                        "",
		"fd00:96::70 fd00:96::7:1":           "",
		"10.96.0.2 10.96.9.9/32":             "", // in the range, but of no Service
		"":                                   "",
		"::::.:./10/":                        "",
		// ranges
		"NO_PROXY=10.96.0.0/16,.svc":    "10.96.0.0/16",
		"10.96.0.0/12: 10.0.0.0/8.":     "10.96.0.0/12 10.0.0.0/8",
		"10.96.3.0/24":                  "10.96.3.0/24",
		"fd00:96::/64":                  "fd00:96::/64",
		"0.0.0.0/0 ::/0":                "", // the new range as well
		"10.97.0.0/16 172.24.0.0/16":    "",
		"10.96.0.0/99 10.96.0.0/1x /16": "",
		"10.96.0.0/16/x":                "", // a path
		"10.96.0.1/16":                  "10.96.0.1",
		"10.96.0.1:80/16":               "10.96.0.1",
	} {
		if got := strings.Join(s.Values(text), " "); got != want {
			t.Errorf("Values(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestZones(t *testing.T) {
	s := scanner(t)
	for text, want := range map[string]string{
		"96.10.in-addr.arpa":                       "96.10.in-addr.arpa",
		"3.96.10.IN-ADDR.ARPA.:53 {":               "3.96.10.in-addr.arpa",
		"10.in-addr.arpa":                          "10.in-addr.arpa",
		"in-addr.arpa ip6.arpa":                    "",
		"97.10.in-addr.arpa":                       "",
		"10.96.in-addr.arpa":                       "", // 96.10.0.0/16
		"1.2.3.4.5.in-addr.arpa":                   "",
		"x.10.in-addr.arpa 0-9.96.10.in-addr.arpa": "",
		"6.9.0.0.0.0.d.f.ip6.arpa":                 "6.9.0.0.0.0.d.f.ip6.arpa",
		"7.9.0.0.0.0.d.f.ip6.arpa":                 "",
		"96.0.d.f.ip6.arpa g.ip6.arpa":             "",
	} {
		if got := strings.Join(s.Zones(text), " "); got != want {
			t.Errorf("Zones(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestReferencesOfOneObjectAreBounded(t *testing.T) {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "many"}, Data: map[string]string{}}
	for i := range 300 {
		cm.Data[fmt.Sprintf("k%03d", i)] = "password=hunter2 10.96.3.7 " + strings.Repeat("x", 1000)
	}
	found := scanner(t).Find(cm)
	if len(found) != perObject || found[0] != (Reference{Object: "ConfigMap shop/many", Field: "data[k000]", Value: "10.96.3.7"}) {
		t.Errorf("found %d, first %+v", len(found), found[0])
	}
}

func TestKindsWithoutAddressesHaveNoReferences(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"a": "10.96.3.7"}}}
	if found := scanner(t).Find(account); len(found) > 0 {
		t.Errorf("found %v in a ServiceAccount", found)
	}
}

// FuzzValues checks that nothing is found that does not stand there as an address or range that is
// looked for, and that an address between separators is found whatever stands around it.
func FuzzValues(f *testing.F) {
	s := scanner(f)
	for _, seed := range []string{"http://10.96.0.1:80/x", "10.96.0.0/12, fd00:96::7", "::ffff:10.96.0.1/128", "10.96.0.1.", "96.10.in-addr.arpa", "[", "é"} {
		f.Add(seed, "/")
		f.Add(seed, "")
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, value := range s.Values(before) {
			if !strings.Contains(before, value) || !wanted(s, value) {
				t.Fatalf("%q in %q is not looked for", value, before)
			}
		}
		s.Zones(before)
		if text := before + " 10.96.3.7," + after; len(s.Values(before)) < perObject && !slices.Contains(s.Values(text), "10.96.3.7") {
			t.Fatalf("10.96.3.7 is not found in %q", text)
		}
	})
}

func wanted(s *Scanner, value string) bool {
	if a, err := netip.ParseAddr(value); err == nil {
		return s.addresses[a.Unmap()]
	}
	p, err := netip.ParsePrefix(value)
	return err == nil && (s.concerns(p) || p.IsSingleIP() && s.addresses[p.Addr()])
}

func BenchmarkValues(b *testing.B) {
	s := scanner(b)
	text := strings.Repeat("server: http://192.0.2.7:8080/path # comment number 12345\n", 1000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.Values(text)
	}
}

// TestBypass: a list of what is reached without a proxy matters where there is a proxy, and where
// it leaves the new range out.
func TestBypass(t *testing.T) {
	proxy := corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://192.0.2.1:3128"}
	for _, tt := range []struct {
		name, list string
		proxy      corev1.EnvVar
		want       string
	}{
		{"range", "localhost,10.96.0.0/12,.svc", proxy, "10.96.0.0/12!"},
		{"both ranges", "10.96.0.0/12,172.16.0.0/12", proxy, "10.96.0.0/12"},
		{"an address of the new range is not the range", "10.96.0.0/12,172.24.0.1", proxy, "10.96.0.0/12!"},
		{"address", "10.96.0.1", proxy, "10.96.0.1!"},
		{"both addresses", "10.96.0.1 172.24.0.1", proxy, "10.96.0.1"},
		{"addresses as ranges", "10.96.0.1/32,172.24.0.1/32", proxy, "10.96.0.1/32"},
		{"everything", "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16", proxy, "10.0.0.0/8"},
		{"no proxy", "10.96.0.0/12", corev1.EnvVar{Name: "HTTPS_PROXY"}, "10.96.0.0/12"},
		{"a proxy from elsewhere", "10.96.0.0/12", corev1.EnvVar{Name: "http_proxy", ValueFrom: &corev1.EnvVarSource{}}, "10.96.0.0/12!"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Env: []corev1.EnvVar{tt.proxy, {Name: "No_Proxy", Value: tt.list}},
		}}}}
		var got []string
		for _, r := range scanner(t).Find(pod) {
			mark := ""
			if r.Bypass {
				mark = "!"
			}
			got = append(got, r.Value+mark)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
		}
	}
}

// TestTokens: a Scanner finds something in the tokens of a text if, and only if, it finds something
// in the text.
func TestTokens(t *testing.T) {
	s, err := New([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:1::/112")},
		[]netip.Prefix{netip.MustParsePrefix("172.24.0.0/16"), netip.MustParsePrefix("fd00:2::/112")},
		[]netip.Addr{netip.MustParseAddr("10.96.3.7"), netip.MustParseAddr("10.96.0.0"), netip.MustParseAddr("fd00:1::7")})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"": "", "hunter2": "", "v10.96.3.7": "", "110.96.3.7": "110.96.3.7", "10.96.3.7.nip.io": "", "http://10.96.3.7:80/x": "10.96.3.7",
		"a,10.96.3.7;b": "10.96.3.7", "10.96.3.7.": "10.96.3.7", "10.96.3.7/32": "10.96.3.7/32", "10.96.0.0/16": "10.96.0.0/16",
		"10.96.0.5/16": "10.96.0.5", "10.96.0.0/99": "10.96.0.0", "10.0.0.0/8": "10.0.0.0/8", "10.96.3.7 10.96.3.7 10.1.1.1": "10.96.3.7 10.1.1.1",
		"[fd00:1::7]:443": "fd00:1::7", "fd00:1::/112": "fd00:1::/112", "key: fd00:1::7:": "fd00:1::7", "::ffff:10.96.3.7": "::ffff:10.96.3.7",
		"zone 96.10.in-addr.arpa.": "96.10.in-addr.arpa", "10.IN-ADDR.ARPA": "10.in-addr.arpa", "9.9.9.in-addr.arpa": "9.9.9.in-addr.arpa",
	} {
		got := Tokens(text)
		if strings.Join(got, " ") != want {
			t.Errorf("%q has %q, want %q", text, got, want)
		}
		kept := strings.Join(got, "\n")
		if again := Tokens(kept); !slices.Equal(again, got) {
			t.Errorf("%q has %q, and these have %q", text, got, again)
		}
		found := func(text string) bool { return len(s.Values(text)) > 0 || len(s.Zones(text)) > 0 }
		if found(text) != found(kept) {
			t.Errorf("%q: found %v, and in %q %v", text, found(text), kept, found(kept))
		}
	}
}

func FuzzTokens(f *testing.F) {
	s, err := New([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("172.24.0.0/16")},
		[]netip.Addr{netip.MustParseAddr("10.96.3.7"), netip.MustParseAddr("fd00::7")})
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{"10.96.3.7/32.", "a:10.96.3.7:b", "10.96.0.0/16", "96.10.in-addr.arpa", "[fd00::7]:1", "10.96.3.7/999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		kept := strings.Join(Tokens(text), "\n")
		found := func(text string) bool { return len(s.Values(text)) > 0 || len(s.Zones(text)) > 0 }
		if found(text) != found(kept) {
			t.Errorf("%q: found %v, and in %q %v", text, found(text), kept, found(kept))
		}
	})
}
