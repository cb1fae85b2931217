package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
)

func TestIssue(t *testing.T) {
	ca, err := NewCA("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewCA("other-ca")
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.Issue(Request{CommonName: "server", Names: []string{"api"}, Addresses: []net.IP{net.IPv4(10, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := ca.Issue(Request{CommonName: "system:node:a", Organization: []string{"system:nodes"}})
	if err != nil {
		t.Fatal(err)
	}
	serverAuth, clientAuth := x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	tests := []struct {
		name  string
		pair  Pair
		ca    *CA
		host  string
		usage x509.ExtKeyUsage
		valid bool
	}{
		{"by name", server, ca, "api", serverAuth, true},
		{"by address", server, ca, "10.0.0.1", serverAuth, true},
		{"another name", server, ca, "evil", serverAuth, false},
		{"another authority", server, other, "api", serverAuth, false},
		{"client", client, ca, "", clientAuth, true},
		{"client as server", client, ca, "", serverAuth, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := verify(tt.pair, tt.ca, tt.host, tt.usage); (err == nil) != tt.valid {
				t.Errorf("verification: %v, want valid %v", err, tt.valid)
			}
		})
	}
}

func verify(p Pair, ca *CA, host string, usage x509.ExtKeyUsage) error {
	pair, err := tls.X509KeyPair(p.Cert, p.Key) // also checks that the key belongs to the certificate
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}
