package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"time"
)

// Files are PEM files for clients of etcd. kubeadm has etcd/ca.crt in /etc/kubernetes/pki, and
// apiserver-etcd-client.crt and .key or those of etcd/healthcheck-client.
type Files struct{ CA, Cert, Key string }

// FileError says what is wrong with a file.
type FileError struct{ File, Problem, Hint string }

func (e *FileError) Error() string  { return e.File + ": " + e.Problem }
func (e *FileError) Advice() string { return e.Hint }

func (f Files) Load() (*tls.Config, error) {
	ca, err := readPEM(f.CA, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, &FileError{f.CA, "its certificates cannot be read", "it should be the authority of etcd, such as etcd/ca.crt"}
	}
	certificate, err := readPEM(f.Cert, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	key, err := readPEM(f.Key, "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(f.Key); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, &FileError{
			f.Key,
			fmt.Sprintf("it can be read by others (mode %#o)", info.Mode().Perm()),
			"chmod 600 it: who has it has all Secrets",
		}
	}
	return f.config(roots, certificate, key)
}

// Parse is Load for a Secret's ca.crt, tls.crt and tls.key; secret is its name in errors.
func Parse(secret string, ca, certificate, key []byte) (*tls.Config, error) {
	f := Files{CA: "secret " + secret + ", ca.crt", Cert: "secret " + secret + ", tls.crt", Key: "secret " + secret + ", tls.key"}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, &FileError{f.CA, "its certificates cannot be read", "it should be the authority of etcd, such as etcd/ca.crt"}
	}
	return f.config(roots, certificate, key)
}

func (f Files) config(roots *x509.CertPool, certificate, key []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, &FileError{f.Cert, fmt.Sprintf("with the key %s: %v", f.Key, err), "name the key that belongs to the certificate"}
	}
	if err := f.usable(pair.Leaf); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}}, nil
}

// usable says why a leaf fails, for which etcd only answers "bad certificate".
func (f Files) usable(leaf *x509.Certificate) error {
	now := time.Now()
	switch {
	case now.After(leaf.NotAfter):
		return &FileError{f.Cert, "it has expired on " + leaf.NotAfter.Format(time.DateTime), "renew it: kubeadm certs renew"}
	case now.Before(leaf.NotBefore):
		return &FileError{f.Cert, "it is good from " + leaf.NotBefore.Format(time.DateTime), "is the clock right?"}
	case len(leaf.ExtKeyUsage) > 0 && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) &&
		!slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny):
		return &FileError{f.Cert, "it is not for clients", "name a client certificate, such as apiserver-etcd-client.crt"}
	}
	return nil
}

func readPEM(file string, types ...string) ([]byte, error) {
	body, err := os.ReadFile(file)
	switch {
	case file == "":
		return nil, &FileError{"etcd", "a file of a certificate is not named", "name the authority, the client certificate and its key"}
	case os.IsPermission(err):
		return nil, &FileError{file, "it must not be read", "run this as a user who may, often root"}
	case err != nil:
		return nil, &FileError{file, "it cannot be read: " + reason(err), "with kubeadm the files are in /etc/kubernetes/pki"}
	}
	for rest := body; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, &FileError{file, fmt.Sprintf("it has no PEM block of type %s", types[0]), "were two files mixed up?"}
		}
		if slices.Contains(types, block.Type) {
			return body, nil
		}
	}
}
