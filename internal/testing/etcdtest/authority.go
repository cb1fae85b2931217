package etcdtest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/replumb/replumb/internal/testing/pki"
)

// Files are a certificate with its key, and that of the authority.
type Files struct{ CA, Cert, Key string }

// Authority issues the certificates of an etcd, into files of a folder.
type Authority struct {
	dir string
	ca  *pki.CA
	// Clients is what clients show.
	Clients Files
}

// NewAuthority makes one, with a certificate for clients.
func NewAuthority(dir string) (*Authority, error) {
	ca, err := pki.NewCA("etcd-ca")
	if err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, ca: ca}
	a.Clients, err = a.Issue("client", nil)
	return a, err
}

// Issue makes a certificate for a member at an address, or for a client.
func (a *Authority) Issue(name string, at net.IP) (Files, error) {
	request := pki.Request{CommonName: name}
	if at != nil {
		// Members refuse a peer that comes from an address its certificate does not name, and on
		// one machine all come from here.
		request.Addresses = []net.IP{at, net.IPv4(127, 0, 0, 1)}
	}
	f := Files{CA: filepath.Join(a.dir, "ca.crt"), Cert: filepath.Join(a.dir, name+".crt"), Key: filepath.Join(a.dir, name+".key")}
	pair, err := a.ca.Issue(request)
	for file, body := range map[string][]byte{f.CA: a.ca.Cert, f.Cert: pair.Cert, f.Key: pair.Key} {
		if err == nil {
			err = os.WriteFile(file, body, 0o600)
		}
	}
	return f, err
}

// TLS is how clients connect.
func (a *Authority) TLS() (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(a.Clients.Cert, a.Clients.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.ca.Cert) {
		return nil, errors.New("the authority's own certificate does not parse")
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}, nil
}

// Subnet is 254 addresses of this machine alone, from the first three bytes of the result on:
// members have addresses of their own, as on machines of their own, and tests that run at the same
// time others than these.
func Subnet(test string) net.IP {
	h := fnv.New32()
	_, _ = fmt.Fprint(h, test, os.Getpid())
	return net.IPv4(127, byte(64+h.Sum32()>>8&0x3f), byte(h.Sum32()), 0).To4()
}

// InitialCluster is --initial-cluster of members that begin together.
func InitialCluster(all ...*Member) string {
	var parts []string
	for _, m := range all {
		parts = append(parts, m.Name+"="+m.Peer)
	}
	return strings.Join(parts, ",")
}
