package webui

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/progress"
)

// MigrationSource is the migration that is shown.
type MigrationSource interface {
	Look(ctx context.Context) (progress.View, []Offer, error)
	// Report is made again for each call.
	Report(ctx context.Context) (*htmlreport.Document, error)
	// Confirm writes an annotation, unless it is not asked for any more.
	Confirm(ctx context.Context, o Offer) error
}

// The limits of a page on one machine.
const (
	answerLimit = time.Minute
	headLimit   = 10 * time.Second
	bodyLimit   = 4 << 10
)

// Server serves a page.
type Server struct {
	source MigrationSource
	host   string
	token  string
	listen net.Listener
	http   *http.Server
}

// Listen takes a port of 127.0.0.1, any free one for 0. Nothing is served before Serve.
func Listen(ctx context.Context, port int, source MigrationSource) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // which cannot fail
	s := &Server{source: source, host: l.Addr().String(), token: base64.RawURLEncoding.EncodeToString(secret), listen: l}
	s.http = &http.Server{Handler: s.guarded(), ReadHeaderTimeout: headLimit, ReadTimeout: answerLimit, WriteTimeout: answerLimit}
	return s, nil
}

// URL of the page. Its token lets anyone look, and confirm.
func (s *Server) URL() string { return "http://" + s.host + "/" + s.token + "/" }

// Serve serves until ctx is cancelled.
func (s *Server) Serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = s.http.Close() })()
	if err := s.http.Serve(s.listen); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// guarded wants the token and the address by its number: another page in the browser can neither
// guess the one nor use a name of its own for the other.
func (s *Server) guarded() http.Handler {
	inner := http.NewServeMux()
	inner.HandleFunc("GET /{$}", s.page)
	inner.HandleFunc("GET /state", s.state)
	inner.HandleFunc("GET /report", s.report)
	inner.HandleFunc("POST /confirm", s.confirm)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		token, rest, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if !ok || r.Host != s.host || !s.knows(token) {
			http.NotFound(w, r)
			return
		}
		within := r.Clone(r.Context())
		within.URL.Path, within.URL.RawPath = "/"+rest, ""
		inner.ServeHTTP(w, within)
	})
}

func (s *Server) knows(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	page, policy, err := render()
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page)
}

// barCells is how many cells the bar of the page has, few enough for an empty one to be seen.
const barCells = 40

type moment struct {
	Name    string    `json:"name"`
	Cluster string    `json:"cluster"`
	At      time.Time `json:"at"`
	// When is when it was worked on, how long, and at whose command.
	When string `json:"when"`
	// Phase is how far it got, and Standing how it goes; Tone is of Standing.
	Phase    string        `json:"phase"`
	Standing string        `json:"standing"`
	Tone     progress.Tone `json:"tone"`
	// Filled is how many cells of the bar are; there is none if Counted is false.
	Filled  int                  `json:"filled"`
	Counted bool                 `json:"counted"`
	Facts   []progress.Fact      `json:"facts"`
	Losses  []string             `json:"losses"`
	Gates   []shownGate          `json:"gates"`
	Offers  []Offer              `json:"offers"`
	Phases  []progress.PhaseLine `json:"phases"`
	Over    bool                 `json:"over"`
	// Changed is another text whenever the report is worth being read again.
	Changed string `json:"changed"`
}

type shownGate struct {
	Title string    `json:"title"`
	Guide string    `json:"guide"`
	Since time.Time `json:"since"`
}

func momentOf(v progress.View, offers []Offer) moment {
	m := moment{
		Name: v.Migration, Cluster: v.Cluster, At: v.At.UTC(), Phase: cmp.Or(string(v.Phase), "Not begun"),
		Filled: v.Filled(barCells), Counted: v.Total > 0, Facts: v.Facts(), Losses: append([]string{}, v.Losses()...),
		Gates: []shownGate{}, Offers: append([]Offer{}, offers...), Phases: append([]progress.PhaseLine{}, v.Phases...),
		Over: v.Over, Changed: fmt.Sprintf("%s %d", v.Key(), v.Done),
	}
	m.Standing, m.Tone = v.Standing()
	if v.Effort != nil {
		m.When = v.Effort.Line()
	}
	for _, g := range v.Gates {
		m.Gates = append(m.Gates, shownGate{Title: g.Title, Guide: g.Guide, Since: g.Since.UTC()})
	}
	return m
}

func (s *Server) state(w http.ResponseWriter, r *http.Request) {
	v, offers, err := s.source.Look(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, momentOf(v, offers))
}

func (s *Server) report(w http.ResponseWriter, r *http.Request) {
	doc, err := s.source.Report(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Security-Policy", "frame-ancestors 'self'") // beside the one that it has itself
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = doc.Framed(w) // who reads it may have gone
}

// confirm takes what the page itself sends, and no form or script of another one.
func (s *Server) confirm(w http.ResponseWriter, r *http.Request) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	site := r.Header.Get("Sec-Fetch-Site")
	if r.Header.Get("Origin") != "http://"+s.host || site != "" && site != "same-origin" || kind != "application/json" ||
		!s.knows(r.Header.Get("X-Replumb-Token")) {
		answer(w, http.StatusForbidden, problem{"this page did not ask for it"})
		return
	}
	var want struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, bodyLimit)).Decode(&want); err != nil {
		answer(w, http.StatusBadRequest, problem{"what was sent cannot be read"})
		return
	}
	_, offers, err := s.source.Look(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	for _, o := range offers {
		if o.ID != want.ID {
			continue
		}
		if err := s.source.Confirm(r.Context(), o); err != nil {
			fail(w, err)
			return
		}
		answer(w, http.StatusOK, o)
		return
	}
	answer(w, http.StatusConflict, problem{"this is not asked for any more; look again"})
}

type problem struct {
	Problem string `json:"problem"`
}

func fail(w http.ResponseWriter, err error) {
	answer(w, http.StatusBadGateway, problem{err.Error()})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // who asked may have gone
}
