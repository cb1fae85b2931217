package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/replumb/replumb/internal/verify/echoserver"
	"github.com/replumb/replumb/internal/verify/probe"
)

// maxSlow bounds how long /slow may hold a request.
const maxSlow = time.Minute

// equip has a server tell over HTTP and UDP, too, who it is. What probes ask it answers as they expect.
func equip(s *echoserver.Server) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { tell(s, w, r) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { health(s, w) })
	mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) { slow(s, w, r) })
	s.Web = mux
	s.Datagram = func(sent []byte, from net.Addr) []byte {
		if answer := probe.Answer(sent); answer != nil {
			return answer
		}
		return s.Tell(from.String())
	}
}

func tell(s *echoserver.Server, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	// A client that hangs up meanwhile is its own affair.
	_, _ = fmt.Fprintf(w, "%s\n", s.Tell(r.RemoteAddr))
}

func health(s *echoserver.Server, w http.ResponseWriter) {
	if s.Draining() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

func slow(s *echoserver.Server, w http.ResponseWriter, r *http.Request) {
	delay, err := delayOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case <-r.Context().Done():
	case <-time.After(delay):
		tell(s, w, r)
	}
}

func delayOf(r *http.Request) (time.Duration, error) {
	ms, err := strconv.Atoi(r.URL.Query().Get("ms"))
	if err != nil || ms < 0 || int64(ms) > maxSlow.Milliseconds() {
		return 0, errors.New("ms must be between 0 and " + strconv.FormatInt(maxSlow.Milliseconds(), 10))
	}
	return time.Duration(ms) * time.Millisecond, nil
}
