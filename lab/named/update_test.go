package named

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestUpdate sees what a server is sent: names lose what they had and get what they shall have, under a signature that is good.
func TestUpdate(t *testing.T) {
	key := NewKey()
	secret := strings.Split(string(key), `"`)[3]
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	server := &dns.Server{
		Listener: listener, TsigSecret: map[string]string{KeyName + ".": secret},
		MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept },
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			text := ""
			for _, r := range m.Ns {
				text += strings.Join(strings.Fields(r.String()), " ") + "\n"
			}
			got <- text
			answer := new(dns.Msg).SetReply(m)
			if m.IsTsig() == nil || w.TsigStatus() != nil {
				answer.Rcode = dns.RcodeRefused
			}
			_ = w.WriteMsg(answer)
		}),
	}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })

	update := func(key []byte, records ...Record) error {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return Zone{Name: "lab.example", TTL: 30e9}.Update(t.Context(), conn, key, records...)
	}
	address := netip.MustParseAddr("172.31.0.50")
	if err := update(key, Record{"api-right", address}, Record{Name: "gone"}); err != nil {
		t.Fatal(err)
	}
	want := "api-right.lab.example. 0 CLASS255 A\napi-right.lab.example. 30 IN A 172.31.0.50\ngone.lab.example. 0 CLASS255 A\n"
	if got := <-got; got != want {
		t.Errorf("it was sent\n%swant\n%s", got, want)
	}
	if err := update(NewKey(), Record{"api-right", address}); err == nil {
		t.Error("any key will do")
	}
	if err := update([]byte("key"), Record{"api-right", address}); err == nil || !strings.Contains(err.Error(), "no secret") {
		t.Errorf("without a key: %v", err)
	}
}
