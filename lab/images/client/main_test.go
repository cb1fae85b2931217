package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/verify/probe"
)

func TestWritesOneLinePerWindowAndTheLastAtTheEnd(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "config.json")
	config := `{"targets":[{"name":"shop","kind":"http","address":"` + server.Listener.Addr().String() + `","rate":20}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, file, writer)
		_ = writer.Close()
		done <- err
	}()
	var series probe.Series
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		var w probe.Interval
		if err := json.Unmarshal(lines.Bytes(), &w); err != nil {
			t.Fatalf("%v in %q", err, lines.Text())
		}
		var err error
		if series, err = series.Append(w); err != nil {
			t.Fatal(err)
		}
		if len(series) == 2 {
			cancel()
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	stats, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.OK < 20 || stats.Failed != 0 || series[len(series)-1].Until == 0 {
		t.Errorf("stats = %+v, last = %+v", stats, series[len(series)-1])
	}
}

func TestBadConfiguration(t *testing.T) {
	for config, want := range map[string]string{
		"":               "no configuration",
		"{":              "read probe configuration",
		`{"targets":[]}`: "names no targets",
		`{"target":"x"}`: "unknown field",
	} {
		t.Setenv("CLIENT_CONFIG", config)
		err := run(t.Context(), "", io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("config %q: error = %v, want it to contain %q", config, err, want)
		}
	}
}
