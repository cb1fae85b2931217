package dnsrecords

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// TSIGKey signs messages (TSIG, RFC 8945). It is never printed.
type TSIGKey struct {
	name      string
	algorithm string
	secret    string
}

// String keeps the secret out of whatever a key is printed to.
func (k *TSIGKey) String() string { return "key " + strings.TrimSuffix(k.name, ".") }

// GoString does so for %#v.
func (k *TSIGKey) GoString() string { return k.String() }

// NewKey makes a key of what is written in a Secret or a file. Errors do not quote the secret.
func NewKey(name, algorithm, secret string) (*TSIGKey, error) {
	k := &TSIGKey{
		name: dns.CanonicalName(strings.TrimSpace(name)), algorithm: dns.CanonicalName(strings.TrimSpace(algorithm)),
		secret: strings.TrimSpace(secret),
	}
	known := []string{dns.HmacSHA224, dns.HmacSHA256, dns.HmacSHA384, dns.HmacSHA512}
	if _, ok := dns.IsDomainName(k.name); !ok || k.name == "." {
		return nil, errors.New("the key has no name")
	}
	if !slices.Contains(known, k.algorithm) {
		return nil, fmt.Errorf("the algorithm of %s is none of hmac-sha224, hmac-sha256, hmac-sha384, hmac-sha512", k)
	}
	raw, err := base64.StdEncoding.DecodeString(k.secret)
	if err != nil || len(raw) == 0 {
		return nil, fmt.Errorf("the secret of %s is not in base64", k)
	}
	return k, nil
}

// KeyOf reads the keys name, algorithm and secret of a Secret.
func KeyOf(data map[string][]byte) (*TSIGKey, error) {
	for _, field := range []string{"name", "algorithm", "secret"} {
		if len(data[field]) == 0 {
			return nil, fmt.Errorf("it has no key %s", field)
		}
	}
	return NewKey(string(data["name"]), string(data["algorithm"]), string(data["secret"]))
}

var errKeyFile = errors.New("it does not hold exactly one key as tsig-keygen writes it")

// ParseKey reads tsig-keygen's: key "name" { algorithm hmac-sha256; secret "..."; };
func ParseKey(text string) (*TSIGKey, error) {
	words, err := keyWords(text)
	if err != nil {
		return nil, err
	}
	if len(words) < 5 || words[0] != "key" || words[2] != "{" {
		return nil, errKeyFile
	}
	fields, rest, err := keyFields(words[3:])
	if err != nil {
		return nil, err
	}
	closed := slices.Equal(rest, []string{"}", ";"}) || slices.Equal(rest, []string{"}"})
	if !closed || len(fields) != 2 || fields["algorithm"] == "" || fields["secret"] == "" {
		return nil, errKeyFile
	}
	return NewKey(words[1], fields["algorithm"], fields["secret"])
}

// keyFields reads "name value ;" up to the brace.
func keyFields(words []string) (fields map[string]string, rest []string, err error) {
	fields = map[string]string{}
	for len(words) >= 3 && words[0] != "}" {
		if _, twice := fields[words[0]]; twice || words[2] != ";" {
			return nil, nil, errKeyFile
		}
		fields[words[0]], words = words[1], words[3:]
	}
	return fields, words, nil
}

// keyWords splits a file into words and the signs { } ;, without quotes and comments.
func keyWords(text string) ([]string, error) {
	var words []string
	for text = skip(text); text != ""; text = skip(text) {
		switch {
		case strings.ContainsRune("{};", rune(text[0])):
			words, text = append(words, text[:1]), text[1:]
		case text[0] == '"':
			end := strings.IndexByte(text[1:], '"')
			if end < 0 {
				return nil, errKeyFile
			}
			words, text = append(words, text[1:end+1]), text[end+2:]
		default:
			end := strings.IndexAny(text, " \t\r\n{};\"#")
			if end < 0 {
				end = len(text)
			}
			if end == 0 {
				return nil, errKeyFile
			}
			words, text = append(words, text[:end]), text[end:]
		}
	}
	return words, nil
}

// skip leaves out white space and comments: # and //, and /* */.
func skip(text string) string {
	for {
		text = strings.TrimLeft(text, " \t\r\n")
		var end string
		switch {
		case strings.HasPrefix(text, "#"), strings.HasPrefix(text, "//"):
			end = "\n"
		case strings.HasPrefix(text, "/*"):
			end = "*/"
		default:
			return text
		}
		_, rest, found := strings.Cut(text, end)
		if !found {
			return ""
		}
		text = rest
	}
}
