package etcdrelay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/replumb/replumb/internal/kube/etcd"
)

// Files are what kubeadm gives API servers, as clients of the etcd of their node
// (cmd/kubeadm/app/constants in k8s.io/kubernetes).
func Files() etcd.Files {
	return etcd.Files{
		CA:   "/etc/kubernetes/pki/etcd/ca.crt",
		Cert: "/etc/kubernetes/pki/apiserver-etcd-client.crt",
		Key:  "/etc/kubernetes/pki/apiserver-etcd-client.key",
	}
}

// Local are the addresses of which kubeadm gives API servers one (getAPIServerCommand in
// cmd/kubeadm/app/phases/controlplane of k8s.io/kubernetes).
func Local() []string { return []string{"127.0.0.1:2379", "[::1]:2379"} }

// greeting is what the other end reads once etcd has taken the certificate.
const greeting = "connected\n"

// connectLimit is for one address, on the node itself.
const connectLimit = 5 * time.Second

// Serve connects in and out to the etcd of its node, until either end is done.
func Serve(ctx context.Context, files etcd.Files, addresses []string, in io.Reader, out io.Writer) error {
	config, err := files.Load()
	if err != nil {
		return err
	}
	config.NextProtos = []string{"h2"} // gRPC refuses what does not negotiate it
	there, err := connectAny(ctx, config, addresses)
	if err != nil {
		return err
	}
	defer func() { _ = there.Close() }()
	if _, err := io.WriteString(out, greeting); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(there, in) // it ends when the other end is gone
		_ = there.Close()
	}()
	if _, err = io.Copy(out, there); errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func connectAny(ctx context.Context, config *tls.Config, addresses []string) (net.Conn, error) {
	var all error
	for _, address := range addresses {
		within, cancel := context.WithTimeout(ctx, connectLimit)
		conn, err := (&tls.Dialer{Config: config}).DialContext(within, "tcp", address)
		cancel()
		if err == nil {
			return conn, nil
		}
		all = errors.Join(all, fmt.Errorf("etcd at %s: %w", address, err))
	}
	return nil, all
}
