// Package pki makes the certificates and keys of a cluster, as kubeadm does: certificate
// authorities for the cluster, for etcd and for the aggregation layer, and what each component
// serves and identifies itself with.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// validity of everything issued: labs live for minutes to days.
const validity = 30 * 24 * time.Hour

// Pair is a certificate and its private key, PEM encoded.
type Pair struct{ Cert, Key []byte }

// CA is a certificate authority.
type CA struct {
	Pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes a self-signed authority.
func NewCA(commonName string) (*CA, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: commonName}, key)
	if err != nil {
		return nil, fmt.Errorf("making authority %s: %w", commonName, err)
	}
	return &CA{Pair: Pair{Cert: encodeCert(certificate.Raw), Key: keyPEM}, cert: certificate, key: key}, nil
}

// LoadCA returns the authority that NewCA made and p holds.
func LoadCA(p Pair) (*CA, error) {
	certs, err := cert.ParseCertsPEM(p.Cert)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of an authority: %w", err)
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(p.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the key of authority %s: %w", certs[0].Subject.CommonName, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !certs[0].IsCA {
		return nil, fmt.Errorf("%s is not an authority of a lab", certs[0].Subject.CommonName)
	}
	return &CA{Pair: p, cert: certs[0], key: key}, nil
}

// Request says who a certificate is for.
type Request struct {
	CommonName   string   // the user name, for a client
	Organization []string // the groups, for a client
	Names        []string // DNS names it serves
	Addresses    []net.IP // addresses it serves
}

// Issue makes a key and a certificate for it that is good for clients and, when names or addresses
// are given, servers.
func (ca *CA) Issue(r Request) (Pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return Pair{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: r.CommonName, Organization: r.Organization},
		DNSNames:     r.Names,
		IPAddresses:  r.Addresses,
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(r.Names)+len(r.Addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return Pair{}, fmt.Errorf("issuing a certificate to %s: %w", r.CommonName, err)
	}
	return Pair{Cert: encodeCert(der), Key: keyPEM}, nil
}

// NewKeyPair makes the key pair that ServiceAccount tokens are signed and verified with; Cert holds
// the public key.
func NewKeyPair() (Pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: public}), Key: keyPEM}, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	return key, data, err
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}
