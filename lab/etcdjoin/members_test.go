package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAsk(t *testing.T) {
	answer := `[{"id":1,"name":"cp1","peerURLs":["https://172.30.0.10:2380"],"clientURLs":["https://172.30.0.10:2379"]},
		{"id":255,"name":"","peerURLs":["https://172.31.0.9:2380"]}`
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/members" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer peer.Close()
	j := &joiner{name: "cp4", url: "https://172.31.0.10:2380", client: peer.Client()}

	gone := "http://127.0.0.1:1"
	known := answer
	answer += "]"
	if _, err := j.ask(t.Context(), []string{gone, peer.URL}); err == nil || !strings.Contains(err.Error(), "not a member yet") {
		t.Errorf("before it is a member: %v", err)
	}
	answer = known + `,{"id":3,"name":"","peerURLs":["https://172.31.0.10:2380"],"isLearner":true}]`
	const want = "cp1=https://172.30.0.10:2380,ff=https://172.31.0.9:2380,cp4=https://172.31.0.10:2380"
	if got, err := j.ask(t.Context(), []string{gone, peer.URL}); err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if _, err := j.ask(t.Context(), []string{gone}); err == nil {
		t.Error("no answer, and yet it knows")
	}
}
