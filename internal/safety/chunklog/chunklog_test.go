package chunklog

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
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

// TestBombsAreRefused: who can write an object of a megabyte could else take a gigabyte of the
// operator's memory.
func TestBombsAreRefused(t *testing.T) {
	for name, plain := range map[string][]byte{
		"a string": []byte(`"` + strings.Repeat("a", 2000) + `"`), "nothing": bytes.Repeat([]byte(" "), 2000),
		"records": bytes.Repeat([]byte("{}\n"), 1000),
	} {
		payload, err := Compress(plain)
		if err != nil {
			t.Fatal(err)
		}
		none := func(json.RawMessage) error { return nil }
		if err := each(payload, Sum(payload), 1000, none); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
		if err := each(payload, Sum(payload), 3000, none); err != nil {
			t.Errorf("%s, with room: %v", name, err)
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
