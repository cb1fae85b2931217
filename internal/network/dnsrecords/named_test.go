//go:build programs && long

package dnsrecords

import (
	"testing"

	"github.com/replumb/replumb/internal/testing/dnstest"
)

// bind is real servers, and the key that they take updates by.
type bind struct {
	*dnstest.Servers
	key *TSIGKey
}

// startBind runs BIND until the test ends.
func startBind(t *testing.T) *bind {
	t.Helper()
	key, err := ParseKey(dnstest.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return &bind{key: key, Servers: dnstest.Start(t, dnstest.Zone{
		Records: `api 3 IN A 192.0.2.1
api 3 IN A 192.0.2.2
naive 3 IN A 192.0.2.1
www 60 IN CNAME api
locked 60 IN A 192.0.2.1
alias.sub 3 IN CNAME old.example.net.
lb-old.sub 3 IN A 192.0.2.1
lb-new.sub 3 IN A 198.51.100.2
swap.sub 3 IN CNAME lb-old.sub
twice.sub 3 IN CNAME lb-old.sub
`,
		Policy: `grant replumb name api.example.test. A; grant replumb name naive.example.test. A;
			grant replumb name www.example.test. A CNAME;
			grant replumb subdomain sub.example.test. ANY;`,
	})}
}

func (b *bind) client() *Client { return &Client{Port: b.Port, Recursive: []string{b.Resolver}} }

func (b *bind) provider() *Dynamic {
	return &Dynamic{Server: b.Primary, Zone: dnstest.Name, Key: b.key, Client: b.client()}
}
