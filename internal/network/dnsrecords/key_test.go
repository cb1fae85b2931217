package dnsrecords

import (
	"fmt"
	"strings"
	"testing"
)

const secret = "c2VjcmV0IG9mIGEgdGVzdA=="

func TestParseKey(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		ok         bool
	}{
		{"as tsig-keygen writes it", "key \"replumb\" {\n\talgorithm hmac-sha256;\n\tsecret \"" + secret + "\";\n};\n", true},
		{"without quotes, the other way round", "key replumb{secret " + secret + ";algorithm HMAC-SHA512;}", true},
		{
			"comments",
			"# one\n// two\n/* three\n*/ key replumb { algorithm hmac-sha256; # four\n secret \"" + secret + "\"; }; // five", true,
		},
		{"nothing", "", false},
		{"an open comment", "/* key", false},
		{"an open quote", `key "replumb { algorithm hmac-sha256; secret "` + secret + `"; };`, false},
		{"two keys", strings.Repeat(`key "a" { algorithm hmac-sha256; secret "`+secret+`"; };`, 2), false},
		{"no secret", `key "a" { algorithm hmac-sha256; };`, false},
		{"a secret twice", `key "a" { algorithm hmac-sha256; secret "` + secret + `"; secret "` + secret + `"; };`, false},
		{"an algorithm of old", `key "a" { algorithm hmac-md5; secret "` + secret + `"; };`, false},
		{"not base64", `key "a" { algorithm hmac-sha256; secret "topsecret!"; };`, false},
		{"not closed", `key "a" { algorithm hmac-sha256; secret "` + secret + `";`, false},
		{"no semicolon", `key "a" { algorithm hmac-sha256 secret "` + secret + `"; };`, false},
		{"another statement", `zone "a" { algorithm hmac-sha256; secret "` + secret + `"; };`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, err := ParseKey(tt.text)
			if (err == nil) != tt.ok {
				t.Fatalf("got %v", err)
			}
			if err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "topsecret")) {
				t.Errorf("the error tells the secret: %v", err)
			}
			if tt.ok && k.name != "replumb." {
				t.Errorf("key is called %q", k.name)
			}
		})
	}
}

func TestKeyOfSecret(t *testing.T) {
	k, err := KeyOf(map[string][]byte{"name": []byte("Replumb\n"), "algorithm": []byte("hmac-sha512"), "secret": []byte(secret + "\n")})
	if err != nil || k.name != "replumb." || k.secret != secret {
		t.Fatalf("got %v, %v", k, err)
	}
	if _, err := KeyOf(map[string][]byte{"name": []byte("a"), "secret": []byte(secret)}); err == nil ||
		!strings.Contains(err.Error(), "algorithm") {
		t.Errorf("a Secret without algorithm gives %v", err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, k); strings.Contains(text, secret) {
			t.Errorf("%s prints the secret: %s", format, text)
		}
	}
}

// FuzzParseKey: whatever is in the file, there is a usable key or an error that does not quote it.
func FuzzParseKey(f *testing.F) {
	f.Add("key \"replumb\" {\n\talgorithm hmac-sha256;\n\tsecret \"" + secret + "\";\n};\n")
	f.Add("/* */ key a { secret a; algorithm hmac-sha512; } #")
	f.Add(`key "a`)
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseKey(text)
		if (k == nil) == (err == nil) {
			t.Fatalf("key %v and error %v", k, err)
		}
		if k == nil {
			return
		}
		again, err := ParseKey(fmt.Sprintf("key %q { algorithm %s; secret %q; };", k.name, k.algorithm, k.secret))
		if strings.ContainsAny(k.name, "\"\\") {
			return // names that have to be quoted in another way than Go's
		}
		if err != nil || *again != *k {
			t.Fatalf("%s is read, and written again it is not: %v", k, err)
		}
	})
}
