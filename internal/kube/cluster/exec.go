package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// Streams are what a command in a container reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Exec runs a command in the only container of a pod until it ends, or ctx does: over a WebSocket,
// or by SPDY, where something before the API server knows no WebSockets.
func (c *Cluster) Exec(ctx context.Context, pod types.NamespacedName, command []string, s Streams) error {
	at, err := url.JoinPath(c.raw.Get().AbsPath("/").URL().String(), "api/v1/namespaces", pod.Namespace, "pods", pod.Name, "exec")
	if err != nil {
		return err
	}
	options := &corev1.PodExecOptions{Command: command, Stdin: s.In != nil, Stdout: s.Out != nil, Stderr: s.Err != nil}
	query, err := runtime.NewParameterCodec(c.Scheme()).EncodeParameters(options, corev1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	u, err := url.Parse(at + "?" + query.Encode())
	if err != nil {
		return err
	}
	sockets, err := remotecommand.NewWebSocketExecutor(c.plain, http.MethodGet, u.String())
	if err != nil {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.plain, http.MethodPost, u)
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewFallbackExecutor(sockets, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: s.In, Stdout: s.Out, Stderr: s.Err})
	if err != nil {
		return fmt.Errorf("running a command in pod %s: %w", pod, err)
	}
	return nil
}
