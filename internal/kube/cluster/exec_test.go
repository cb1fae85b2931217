package cluster

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// echo is an API server with a process that writes what it reads in capitals, and says what it was
// asked to be.
type echo struct {
	sockets bool
	asked   []string
}

func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.asked = append(e.asked, r.Method)
	switch {
	case !wsstream.IsWebSocketRequest(r):
		e.overSPDY(w, r)
	case e.sockets:
		e.overSocket(w, r)
	default: // as proxies answer that know none
		http.Error(w, "no", http.StatusBadRequest)
	}
}

func (e *echo) overSocket(w http.ResponseWriter, r *http.Request) {
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: []wsstream.ChannelType{
		wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.IgnoreChannel,
	}}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	run(r, streams[0], streams[1], streams[2])
	_, _ = streams[3].Write([]byte(`{"metadata":{},"status":"Success"}`))
}

func (e *echo) overSPDY(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	got := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() { <-replied; got <- s }()
		return nil
	})
	defer func() { _ = conn.Close() }()
	by := map[string]httpstream.Stream{}
	for len(by) < cap(got) {
		s := <-got
		by[s.Headers().Get(corev1.StreamType)] = s
	}
	run(r, by[corev1.StreamTypeStdin], by[corev1.StreamTypeStdout], by[corev1.StreamTypeStderr])
	_, _ = by[corev1.StreamTypeError].Write([]byte(`{"metadata":{},"status":"Success"}`))
	for _, s := range by {
		_ = s.Close()
	}
}

func run(r *http.Request, in io.Reader, out, said io.Writer) {
	line := make([]byte, len("hello"))
	_, _ = io.ReadFull(in, line)
	_, _ = out.Write(bytes.ToUpper(line))
	_, _ = said.Write([]byte(r.URL.Path + " " + strings.Join(r.URL.Query()["command"], " ")))
}

// TestExec over a WebSocket, and by SPDY where something on the way knows none.
func TestExec(t *testing.T) {
	for name, tt := range map[string]struct {
		sockets bool
		asked   string
	}{"WebSocket": {true, "GET"}, "SPDY": {false, "GET POST"}} {
		t.Run(name, func(t *testing.T) {
			e := &echo{sockets: tt.sockets}
			s := httptest.NewServer(e)
			defer s.Close()
			c, err := Connect(&rest.Config{Host: s.URL})
			if err != nil {
				t.Fatal(err)
			}
			var out, said bytes.Buffer
			err = c.Exec(t.Context(), types.NamespacedName{Namespace: "ns", Name: "pod"}, []string{"to", "capitals"},
				Streams{In: strings.NewReader("hello"), Out: &out, Err: &said})
			if want := "/api/v1/namespaces/ns/pods/pod/exec to capitals"; err != nil || out.String() != "HELLO" || said.String() != want {
				t.Errorf("%v, %q, %q, want %q", err, out.String(), said.String(), want)
			}
			if got := strings.Join(e.asked, " "); got != tt.asked {
				t.Errorf("it was asked by %s, want %s", got, tt.asked)
			}
		})
	}
}
