package offline

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/access"
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

// withEntry is an archive, with the checksum it takes, that has one more entry.
func withEntry(t testing.TB, head *tar.Header, body string) []byte {
	t.Helper()
	var to bytes.Buffer
	w, err := newWriter(&to, &Head{Kind: kindOfFile, Format: Format, Replumb: "v1", Server: "192.0.2.1:6443", Context: "prod"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		one := fmt.Sprintf(`{"metadata":{"namespace":"shop","name":"p%d"}}`, i)
		if err := w.page(&page{Version: "v1", Resource: "pods", Kind: "Pod", Items: items(one)}, true); err != nil {
			t.Fatal(err)
		}
	}
	head.Mode, head.Size = 0o600, int64(len(body))
	if err := w.tar.WriteHeader(head); err != nil {
		return nil // no archive can have that
	}
	if _, err := w.tar.Write([]byte(body)); err != nil {
		return nil
	}
	add(w.sum, head.Name, []byte(body))
	w.done.Entries++
	if _, err := w.close(); err != nil {
		t.Fatal(err)
	}
	return to.Bytes()
}

// oversized is an archive with an entry of a kind and of a size, of which no more than a part is
// there.
func oversized(t testing.TB, kind byte, size int64) []byte {
	t.Helper()
	var entry bytes.Buffer
	if err := tar.NewWriter(&entry).
		WriteHeader(&tar.Header{Name: objectsDir + "000001.json", Size: size, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	const kindAt, sumAt, sumEnd = 156, 148, 156 // of a header (archive/tar format.go)
	head := entry.Bytes()
	head[kindAt] = kind
	copy(head[sumAt:sumEnd], "        ")
	sum := 0
	for _, b := range head {
		sum += int(b)
	}
	copy(head[sumAt:sumEnd], fmt.Sprintf("%06o\x00 ", sum))
	var to bytes.Buffer
	w, err := newWriter(&to, &Head{Kind: kindOfFile, Format: Format})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.tar.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.zip.Write(append(head, make([]byte, min(size/2, 2<<20))...)); err != nil {
		t.Fatal(err)
	}
	if err := w.zip.Close(); err != nil {
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
		{"an entry more of a later version", withEntry(t, &tar.Header{Name: "later/1.json"}, "{}"), ""},
		{"a large entry of a later version", withEntry(t, &tar.Header{Name: "later/1.json"}, strings.Repeat("x", 1<<20)), ""},
		{"a name that leads elsewhere", withEntry(t, &tar.Header{Name: "objects/../../../etc/passwd"}, "{}"), "is no name of an entry"},
		{"a name from the root", withEntry(t, &tar.Header{Name: "/etc/passwd"}, "{}"), "is no name of an entry"},
		{"a name of Windows", withEntry(t, &tar.Header{Name: `objects\..\..\x`}, "{}"), "is no name of an entry"},
		{"a long name", withEntry(t, &tar.Header{Name: objectsDir + strings.Repeat("x", 1<<16)}, "{}"), "is no name of an entry"},
		{"a link", withEntry(t, &tar.Header{Name: "later", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, ""), "is no file"},
		{"a folder", withEntry(t, &tar.Header{Name: "objects/", Typeflag: tar.TypeDir}, ""), "is no file"},
		{"a size that is not there", oversized(t, tar.TypeReg, 1<<20), "unexpected EOF"},
		{"a size of no entry", oversized(t, tar.TypeReg, 1<<40), "has more than"},
		{"a large header", oversized(t, tar.TypeXHeader, 4<<20), "header field too long"},
		{"a long name of GNU's", oversized(t, tar.TypeGNULongName, 4<<20), "header field too long"},
		{"something else that is large", rewritten(t, whole, func(_, _ string) (string, string) {
			return "disk.img", strings.Repeat("x", 4<<20)
		}), "begins with"},
		{"a head that is too large", rewritten(t, whole, func(n, b string) (string, string) {
			return n, strings.TrimSuffix(b, "}") + strings.Repeat(" ", 2<<20) + "}"
		}), "it begins with"},
		{"empty", nil, "no snapshot of replumb's"},
		{"text", []byte("apiVersion: v1"), "no snapshot of replumb's"},
		{"other gzip", otherTar.Bytes(), "no snapshot of replumb's"},
		{"other tar", rewritten(t, whole, func(n, b string) (string, string) { return "x" + n, b }), `it begins with "xsnapshot.json"`},
		{"other kind", written(t, func(h *Head) { h.Kind = "else" }), "no snapshot of replumb's"},
		{"newer", written(t, func(h *Head) { h.Format, h.Replumb = Format+1, "v9.9" }), "has format 2, written by replumb \"v9.9\""},
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

// FuzzEntry reads archives that are whole but for one entry, and asks those that pass for what that
// may be.
func FuzzEntry(f *testing.F) {
	pods := `{"version":"v1","resource":"pods","kind":"Pod","items":[{"metadata":{"namespace":"shop","name":"a"}}]}`
	for _, name := range []string{objectsDir + "9.json", answersName, manifestName, headName, "later", "../x", "/x", `a\b`} {
		f.Add(name, []byte(pods), byte(tar.TypeReg), uint32(0))
	}
	f.Add(objectsDir+"9.json", []byte(`{"version":"v1","resource":"pods","refused":{"code":403},"code":403}`), byte(tar.TypeReg), uint32(0))
	f.Add(answersName, []byte(`{"paths":{"/api/v1":{"code":99,"body":"{"}}}`), byte(tar.TypeReg), uint32(0))
	f.Add("later", []byte("x"), byte(tar.TypeSymlink), uint32(0))
	f.Add("later", []byte("x"), byte(tar.TypeReg), uint32(100))
	f.Fuzz(func(t *testing.T, name string, body []byte, kind byte, cut uint32) {
		file := withEntry(t, &tar.Header{Name: name, Typeflag: kind}, string(body))
		if file == nil {
			return
		}
		cut %= uint32(len(file))
		a, err := Read(bytes.NewReader(file[:len(file)-int(cut)]))
		var wrong *Error
		switch {
		case err != nil && !errors.As(err, &wrong):
			t.Fatalf("%v is no *Error", err)
		case err != nil:
			return
		case cut > 0 || !filepath.IsLocal(name):
			t.Fatalf("%q, without its last %d bytes, was read", name, cut)
		}
		s := Serve(a)
		c, err := s.Connect()
		if err != nil {
			return // of another server
		}
		for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.NodeList{}} {
			_ = c.List(t.Context(), list, client.InNamespace("shop"), client.MatchingLabels{"a": "b"})
		}
		_ = c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "a"}, &corev1.Pod{})
		_, _ = c.Access(t.Context(), []access.Right{{Verb: "list", Resource: "pods"}})
		s.Reading().Found()
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
