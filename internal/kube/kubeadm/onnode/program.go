package onnode

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/internal/kube/kubeadm"
)

const (
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
)

// process is a program that runs on the node.
type process struct {
	pid     int
	command []string
}

// running are the processes of a program, by the name it was started by.
func (h NodeFiles) running(program string) (all []process, err error) {
	entries, err := os.ReadDir(h.Proc)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(h.Proc, e.Name(), "cmdline"))
		if err != nil || len(text) == 0 { // it has ended, or is the kernel's
			continue
		}
		command := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		if filepath.Base(command[0]) == program {
			all = append(all, process{pid, command})
		}
	}
	return all, nil
}

// until asks twice a second, for as long as a program may take, and returns the last refusal.
func (h NodeFiles) until(ctx context.Context, holds func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second/2, h.Patience, true, func(ctx context.Context) (bool, error) {
		switch err := holds(ctx); {
		case err == nil:
			return true, nil
		case ctx.Err() == nil: // one that is cut off says nothing of the program
			last = err
		}
		return false, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("after %s: %w", h.Patience, last)
	}
	return err
}

// runs waits until one process of a manifest's program runs, with its command, and is ready by the
// probe of the manifest.
func (h NodeFiles) runs(ctx context.Context, m *kubeadm.StaticPod) error {
	command := m.Pod.Spec.Containers[0].Command
	ready, err := probeOf(m)
	if err != nil {
		return err
	}
	return h.until(ctx, func(ctx context.Context) error {
		all, err := h.running(command[0])
		if err != nil {
			return err
		}
		if len(all) != 1 || !slices.Equal(all[0].command, command) {
			return fmt.Errorf("%s does not run as its manifest says", command[0])
		}
		return ready.ask(ctx)
	})
}

// probe is what a kubelet asks of a program.
type probe struct{ scheme, host, port, path string }

func (p probe) address() string { return net.JoinHostPort(p.host, p.port) }

// probeOf is the readiness probe of a manifest, else another of its probes.
func probeOf(m *kubeadm.StaticPod) (probe, error) {
	c := m.Pod.Spec.Containers[0]
	for _, p := range []*corev1.Probe{c.ReadinessProbe, c.StartupProbe, c.LivenessProbe} {
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Host == "" {
			continue
		}
		port := p.HTTPGet.Port.String()
		if p.HTTPGet.Port.Type == intstr.String {
			for _, named := range c.Ports {
				if named.Name == port {
					port = strconv.Itoa(int(named.ContainerPort))
				}
			}
		}
		return probe{strings.ToLower(string(p.HTTPGet.Scheme)), p.HTTPGet.Host, port, p.HTTPGet.Path}, nil
	}
	return probe{}, &kubeadm.UnusualError{File: manifestOf(c.Command[0]), Problem: "has no probe by HTTP that names a host"}
}

// ask trusts any certificate, as kubelets do.
func (p probe) ask(ctx context.Context) error {
	return getOK(ctx, p.scheme+"://"+p.address()+p.path)
}

func getOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as kubelets ask
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1024))
	if err == nil && response.StatusCode != http.StatusOK {
		first, _, _ := bytes.Cut(body, []byte("\n"))
		err = fmt.Errorf("%s says %s: %s", url, response.Status, first)
	}
	return err
}

// undone joins why a change was taken back, and how that went.
func undone(why, undo error, file string) error {
	if undo != nil {
		return fmt.Errorf("%w; and with %s as it was before: %w", why, file, undo)
	}
	return fmt.Errorf("%w; %s is as it was before, and it runs again", why, file)
}
