package cli

import (
	"bufio"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/replumb/replumb/internal/verify/probe"
)

// probed is the HTTP server of a script. Every third answer is 503 if /fail is asked for, and comes
// after more than a second if /late is.
type probed struct {
	requests atomic.Int64
	// came has room for one: that there was a request.
	came chan struct{}
}

func (p *probed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := p.requests.Add(1)
	select {
	case p.came <- struct{}{}:
	default:
	}
	switch {
	case n%3 != 0:
	case r.URL.Path == "/fail":
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.URL.Path == "/late":
		time.Sleep(probe.LateAfter + 200*time.Millisecond) //nolint:forbidigo // it is how long the answer takes
	}
	_, _ = fmt.Fprintln(w, "hello")
}

// servers are what scripts serve.
var servers sync.Map

// serve starts servers for the script, and puts their addresses into its environment: HTTP, HTTPS
// (with its authority in ca.crt), STREAM, UDP, and CLOSED, where nothing listens.
func serve(ts *testscript.TestScript, _ bool, _ []string) {
	p := &probed{came: make(chan struct{}, 1)}
	web := httptest.NewServer(p)
	ts.Defer(web.Close)
	secure := httptest.NewUnstartedServer(p)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	ts.Defer(secure.Close)
	pemText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	ts.Check(os.WriteFile(ts.MkAbs("ca.crt"), pemText, 0o600))
	lines, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = lines.Close() })
	go echoConns(lines)
	datagrams, err := net.ListenPacket("udp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = datagrams.Close() })
	go echoPackets(datagrams)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Check(closed.Close())
	for name, address := range map[string]net.Addr{
		"HTTP": web.Listener.Addr(), "HTTPS": secure.Listener.Addr(), "STREAM": lines.Addr(), "UDP": datagrams.LocalAddr(),
		"CLOSED": closed.Addr(),
	} {
		ts.Setenv(name, address.String())
	}
	servers.Store(ts, p)
}

// served waits until there were so many requests.
func served(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	found, ok := servers.Load(ts)
	if !ok {
		ts.Fatalf("nothing is served")
	}
	for p := found.(*probed); p.requests.Load() < want; {
		<-p.came
	}
}

func echoConns(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				_, _ = fmt.Fprintln(conn, lines.Text())
			}
		}()
	}
}

func echoPackets(conn net.PacketConn) {
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(buffer[:n], from)
	}
}
