package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
)

// dialTLS verifies the host in the address, by the target's CAFile or the system's authorities.
func dialTLS(ctx context.Context, d *dialer, target Target) (net.Conn, error) {
	host, err := target.serverName()
	if err != nil {
		return nil, err
	}
	roots, err := authorities(target.CAFile)
	if err != nil {
		return nil, err
	}
	raw, err := d.dial(ctx, "tcp", target.Address)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: roots, ServerName: host}
	config.InsecureSkipVerify = target.InsecureSkipVerify
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return conn, nil
}

// authorities reads the file each time, since it may be replaced; nil, the system's, without one.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return roots, nil
}
