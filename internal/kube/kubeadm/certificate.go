package kubeadm

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"

	"k8s.io/client-go/util/keyutil"
)

// KeyPair is a certificate with its private key, both as PEM.
type KeyPair struct{ Certificate, Key []byte }

// Reissue signs an API server's certificate again, for the same private key, names, uses and end of
// life, and for some addresses more. One that has them all is returned as it is.
func Reissue(file string, serving, authority KeyPair, also []netip.Addr) ([]byte, error) {
	old, err := certificate(file, serving.Certificate)
	if err != nil {
		return nil, err
	}
	ca, err := certificate("its authority", authority.Certificate)
	if err != nil {
		return nil, err
	}
	signer, err := signerOf(authority.Key)
	if err != nil {
		return nil, unusual("the key of its authority", "cannot be used: %v", err)
	}
	key, err := signerOf(serving.Key)
	if err != nil {
		return nil, unusual("the key of "+file, "cannot be used: %v", err)
	}
	switch {
	case !same(key.Public(), old.PublicKey):
		return nil, unusual(file, "is not of the key beside it")
	case !same(signer.Public(), ca.PublicKey):
		return nil, unusual("the key of its authority", "is not of the certificate beside it")
	case old.CheckSignatureFrom(ca) != nil:
		return nil, unusual(file, "is not signed by the authority beside it")
	}
	missing := slices.DeleteFunc(slices.Clone(also), func(a netip.Addr) bool { return names(old, a) })
	if len(missing) == 0 {
		return serving.Certificate, nil
	}
	return sign(old, ca, key.Public(), signer, missing)
}

func sign(old, ca *x509.Certificate, public crypto.PublicKey, signer crypto.Signer, also []netip.Addr) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 62))
	if err != nil {
		return nil, err
	}
	addresses := slices.Clone(old.IPAddresses)
	for _, a := range also {
		addresses = append(addresses, net.IP(a.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: old.Subject, DNSNames: old.DNSNames, IPAddresses: addresses,
		NotBefore: old.NotBefore, NotAfter: old.NotAfter, KeyUsage: old.KeyUsage, ExtKeyUsage: old.ExtKeyUsage, BasicConstraintsValid: true,
	}, ca, public, signer)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// Names reports whether a PEM certificate has an address among its subject alternative names.
func Names(text []byte, a netip.Addr) bool {
	c, err := certificate("", text)
	return err == nil && names(c, a)
}

func names(c *x509.Certificate, a netip.Addr) bool {
	return slices.ContainsFunc(c.IPAddresses, func(ip net.IP) bool { return ip.Equal(a.AsSlice()) })
}

func certificate(file string, text []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, unusual(file, "is no certificate")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, unusual(file, "has more than one certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, unusual(file, "is no certificate: %v", err)
	}
	return c, nil
}

func signerOf(text []byte) (crypto.Signer, error) {
	parsed, err := keyutil.ParsePrivateKeyPEM(text)
	if err != nil {
		return nil, err
	}
	if key, ok := parsed.(crypto.Signer); ok {
		return key, nil
	}
	return nil, errors.New("it does not sign")
}

func same(a, b crypto.PublicKey) bool {
	comparable, ok := a.(interface{ Equal(x crypto.PublicKey) bool })
	return ok && comparable.Equal(b)
}
