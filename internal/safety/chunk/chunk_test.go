package chunk

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
)

func read(payload []byte, sum string) (lines []string, err error) {
	err = Each(payload, sum, func(raw json.RawMessage) error {
		lines = append(lines, string(raw))
		return nil
	})
	return lines, err
}

func TestMembersAreRead(t *testing.T) {
	var payload []byte
	for _, part := range []string{"{\"a\":1}\n{\"a\":2}\n", "", "{\"a\":3}\n"} {
		member, err := Compress([]byte(part))
		if err != nil {
			t.Fatal(err)
		}
		payload = append(payload, member...)
	}
	lines, err := read(payload, Sum(payload))
	if err != nil || !slices.Equal(lines, []string{`{"a":1}`, `{"a":2}`, `{"a":3}`}) {
		t.Errorf("read %q, %v", lines, err)
	}
	stop := errors.New("enough")
	if err := Each(payload, Sum(payload), func(json.RawMessage) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("stopped by %v", err)
	}
}

func TestDamageIsFound(t *testing.T) {
	whole, err := Compress([]byte("{\"a\":1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, payload := range map[string][]byte{"cut": whole[:len(whole)-6], "no gzip": []byte("no gzip"), "empty": nil} {
		if _, err := read(payload, Sum(payload)); err == nil {
			t.Errorf("%s: read without an error", name)
		}
		if _, err := read(payload, Sum(whole)); err == nil {
			t.Errorf("%s: read with another checksum", name)
		}
	}
}

func FuzzEach(f *testing.F) {
	whole, err := Compress([]byte("{\"a\":1}\n[2]\n"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		lines, err := read(payload, Sum(payload))
		for _, l := range lines {
			if err == nil && !json.Valid([]byte(l)) {
				t.Errorf("no JSON: %q", l)
			}
		}
	})
}
