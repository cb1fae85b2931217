package onnode

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/replumb/replumb/internal/kube/kubeadm"
)

// issued is the certificate that replumb has signed, in the folder of backups: it is taken back
// only as long as nobody has renewed it.
const issued = "apiserver.crt.issued"

// AddNames has the API server of the node serve a certificate for some addresses more. The server
// takes the file up by itself, and goes on with the same key.
func (h NodeFiles) AddNames(ctx context.Context, also []netip.Addr) error {
	server, err := h.manifest(apiServer)
	if err != nil {
		return err
	}
	p, err := h.pki()
	if err != nil {
		return err
	}
	signed, err := kubeadm.Reissue(servingFile, p.serving, p.authority, also)
	if err != nil {
		return err
	}
	if !bytes.Equal(signed, p.serving.Certificate) {
		if err := h.keep(filepath.Base(servingFile), p.serving.Certificate); err != nil {
			return err
		}
		if err := h.keep(issued, signed); err != nil {
			return err
		}
		if err := h.replace(servingFile, signed); err != nil {
			return err
		}
	}
	if err := h.served(ctx, server, also); err != nil {
		return fmt.Errorf("%w; %s is in place, and names them", err, servingFile)
	}
	return nil
}

// RemoveNames puts the certificate of before AddNames back, unless somebody has renewed it since.
func (h NodeFiles) RemoveNames() error {
	before := filepath.Join(h.backups(), filepath.Base(servingFile))
	if !h.exists(before) {
		return nil
	}
	was, err := h.read(before)
	if err != nil {
		return err
	}
	ours, err := h.read(filepath.Join(h.backups(), issued))
	if err != nil {
		return err
	}
	now, err := h.read(servingFile)
	if err != nil || !bytes.Equal(now, ours) {
		return err
	}
	return h.replace(servingFile, was)
}

// served waits until the API server shows a certificate that names addresses.
func (h NodeFiles) served(ctx context.Context, m *kubeadm.StaticPod, also []netip.Addr) error {
	ready, err := probeOf(m)
	if err != nil {
		return err
	}
	return h.until(ctx, func(ctx context.Context) error {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}, NetDialer: &net.Dialer{Timeout: time.Second}} //nolint:gosec // read, not trusted
		c, err := dialer.DialContext(ctx, "tcp", ready.address())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		secured, _ := c.(*tls.Conn)
		leaf := secured.ConnectionState().PeerCertificates[0]
		for _, a := range also {
			if err := leaf.VerifyHostname(a.String()); err != nil {
				return fmt.Errorf("the API server at %s does not serve a certificate for %s", ready.address(), a)
			}
		}
		return nil
	})
}
