package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// written is an archive with a Service, two pods and a Secret.
func written(t testing.TB, change func(*Head)) []byte {
	t.Helper()
	head := &Head{
		Kind: kindOfFile, Format: Format, Replumb: "v1", Server: "192.0.2.1:6443", Context: "prod", UID: "u", Kubernetes: "v1.36.3",
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	if change != nil {
		change(head)
	}
	var to bytes.Buffer
	w, err := newWriter(&to, head)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.entry(answersName, &answers{Paths: map[string]answer{
		"/version": {Code: 200, Body: `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`},
		"/api/v1": {Code: 200, Body: `{"groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true},
			{"name":"events","kind":"Event","namespaced":true}]}`},
		"/apis": {Code: 200, Body: `{"groups":[]}`},
	}}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*page{
		{Version: "v1", Resource: "pods", Kind: "Pod", Items: items(
			`{"metadata":{"namespace":"shop","name":"b","labels":{"app":"b"}},"spec":{"nodeName":"two"}}`,
			`{"metadata":{"namespace":"shop","name":"a","labels":{"app":"a"}},"spec":{"nodeName":"one"}}`,
		)},
		{Version: "v1", Resource: "pods", Kind: "Pod", Items: items(`{"metadata":{"namespace":"back","name":"c"},"spec":{"nodeName":"one"}}`)},
		{Version: "v1", Resource: "namespaces", Kind: "Namespace", Items: items(`{"metadata":{"name":"shop"}}`)},
		{Version: "v1", Resource: "nodes", Kind: "Node", Refused: json.RawMessage(`{"kind":"Status","reason":"Forbidden","code":403}`), Code: 403},
		{Version: "v1", Resource: "nodes", Kind: "Node", Name: "one", Items: items(`{"metadata":{"name":"one"}}`)},
	} {
		if err := w.page(p, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.close(); err != nil {
		t.Fatal(err)
	}
	return to.Bytes()
}

func items(all ...string) (out []json.RawMessage) {
	for _, one := range all {
		out = append(out, json.RawMessage(one))
	}
	return out
}

// rewritten is an archive whose entries went through a change.
func rewritten(t *testing.T, from []byte, change func(name, body string) (string, string)) []byte {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(from))
	if err != nil {
		t.Fatal(err)
	}
	var to bytes.Buffer
	out := gzip.NewWriter(&to)
	entries := tar.NewWriter(out)
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name, text := change(h.Name, string(body))
		if name == "" {
			continue
		}
		if err := entries.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := entries.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(entries.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}
	return to.Bytes()
}

func same(name, body string) (string, string) { return name, body }

func TestRead(t *testing.T) {
	whole := written(t, nil)
	var otherTar bytes.Buffer
	zip := gzip.NewWriter(&otherTar)
	if _, err := zip.Write([]byte("not a tar, but long enough to be one: " + strings.Repeat("x", 1024))); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"whole", whole, ""},
		{"whole, packed again", rewritten(t, whole, same), ""},
		{"an entry more of a later version", rewritten(t, written(t, nil), same), ""},
		{"empty", nil, "no snapshot of replumb's"},
		{"text", []byte("apiVersion: v1"), "no snapshot of replumb's"},
		{"other gzip", otherTar.Bytes(), "no snapshot of replumb's"},
		{"other tar", rewritten(t, whole, func(n, b string) (string, string) { return "x" + n, b }), `it begins with "xsnapshot.json"`},
		{"other kind", written(t, func(h *Head) { h.Kind = "else" }), "no snapshot of replumb's"},
		{"newer", written(t, func(h *Head) { h.Format, h.Replumb = Format+1, "v9.9" }), "has format 2, written by replumb v9.9"},
		{"cut off", whole[:len(whole)/2], "cut off or damaged"},
		{"cut off near the end", whole[:len(whole)-9], "cut off or damaged"},
		{"without its end", rewritten(t, whole, func(n, b string) (string, string) {
			return strings.ReplaceAll(n, manifestName, ""), b
		}), "its end is missing"},
		{"an entry less", rewritten(t, whole, func(n, b string) (string, string) {
			return strings.ReplaceAll(n, objectsDir+"000002.json", ""), b
		}), "it has 6 entries and not 7"},
		{"an object changed", rewritten(t, whole, func(n, b string) (string, string) {
			return n, strings.ReplaceAll(b, `"app":"b"`, `"app":"c"`)
		}), "its checksum is"},
		{"other counts", rewritten(t, whole, func(n, b string) (string, string) {
			return n, strings.ReplaceAll(b, `"pods":3`, `"pods":4`)
		}), "it has 3 of pods and not 4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := Read(bytes.NewReader(tt.file))
			if tt.want == "" {
				if err != nil || a.Manifest.Objects() != 5 || a.Head.Context != "prod" {
					t.Fatalf("%+v, %v", a, err)
				}
				return
			}
			var wrong *Error
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") ||
				wrong.Advice() == "" {
				t.Errorf("got %v, want %q in one line, with a hint", err, tt.want)
			}
		})
	}
}

// TestCutAnywhere: no beginning of an archive passes for a whole one.
func TestCutAnywhere(t *testing.T) {
	whole := written(t, nil)
	for at := range whole {
		if _, err := Read(bytes.NewReader(whole[:at])); err == nil {
			t.Fatalf("%d of %d bytes were read as a whole archive", at, len(whole))
		}
	}
}

func FuzzRead(f *testing.F) {
	whole := written(f, nil)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add(written(f, func(h *Head) { h.Format = 2 }))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := Read(bytes.NewReader(body))
		var wrong *Error
		if err != nil && !errors.As(err, &wrong) {
			t.Fatalf("%v is no *Error", err)
		}
		if err == nil && a.Head.Kind != kindOfFile {
			t.Fatal("something else was read")
		}
	})
}

// FuzzTake takes the entries that the packing of an archive hides from the fuzzer of all of it.
func FuzzTake(f *testing.F) {
	f.Add(objectsDir+"1.json", []byte(`{"version":"v1","resource":"pods","kind":"Pod","items":[{"metadata":{"name":"a"}}]}`))
	f.Add(answersName, []byte(`{"paths":{"/version":{"code":200,"body":"{}"}}}`))
	f.Add(
		answersName,
		[]byte(`{"access":[{"spec":{},"allowed":true}],"servers":[{"address":"a:1","sans":["10.0.0.1"],"ranges":["10.0.0.0/8"]}]}`),
	)
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		a := &Archive{Head: Head{Server: "h:1"}, objects: newObjects()}
		if err := a.take(name, body); err != nil {
			return
		}
		a.objects.sort()
		for at, c := range a.objects.by {
			for _, o := range c.objects {
				a.objects.get(at.of, o.namespace, o.name)
			}
			a.objects.list(at.of, "shop")
		}
		a.objects.counts()
		a.objects.list(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "")
	})
}

func TestSecretsKeepTokensAlone(t *testing.T) {
	value := "postgres://admin:hunter2@10.96.3.7:5432/db?via=10.97.0.0/16,[fd00::7]:80 # see 96.10.in-addr.arpa."
	secret := `{"metadata":{"namespace":"shop","name":"db","labels":{"app":"db"},"annotations":{"kubectl.kubernetes.io/last-applied-configuration":` +
		`"hunter2"},"managedFields":[{"manager":"hunter2"}]},"type":"Opaque","stringData":{"x":"hunter2"},"data":{"url":"` + base64.StdEncoding.EncodeToString(
		[]byte(value),
	) + `","plain":"` +
		base64.StdEncoding.EncodeToString(
			[]byte("hunter2"),
		) + `"}}`
	out, err := lean("", "secrets", json.RawMessage(secret))
	if err != nil {
		t.Fatal(err)
	}
	var kept struct {
		Type string            `json:"type"`
		Data map[string][]byte `json:"data"`
		Meta struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(out, &kept); err != nil {
		t.Fatal(err)
	}
	if got, want := string(kept.Data["url"]), "10.96.3.7\n10.97.0.0/16\nfd00::7\n96.10.in-addr.arpa"; got != want {
		t.Errorf("url has %q, want %q", got, want)
	}
	if _, there := kept.Data["plain"]; !there || len(kept.Data["plain"]) > 0 || kept.Type != "Opaque" || kept.Meta.Labels["app"] != "db" {
		t.Errorf("kept %s", out)
	}
	for _, secret := range []string{"hunter2", base64.StdEncoding.EncodeToString([]byte("hunter2")), "admin", "postgres"} {
		if bytes.Contains(out, []byte(secret)) {
			t.Errorf("%q is in %s", secret, out)
		}
	}
	certificate, err := lean(
		"",
		"secrets",
		json.RawMessage(`{"metadata":{"name":"tls"},"type":"kubernetes.io/tls","data":{"tls.key":"MTAuMC4wLjE="}}`),
	)
	if err != nil || !bytes.Contains(certificate, []byte(`"tls.key":`)) || bytes.Contains(certificate, []byte("MTAuMC4wLjE")) {
		t.Errorf("%s, %v", certificate, err)
	}
	if _, err := lean("", "secrets", json.RawMessage(`{"data":{"a":"hunter2!"}}`)); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}
