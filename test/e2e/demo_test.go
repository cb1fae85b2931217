package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	exits "github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/lab/demo"
	"github.com/replumb/replumb/lab/lab"
)

// demoTarget is the range that the demo moves to.
const demoTarget = "172.24.0.0/16"

// TestDemo: the demo tells requests that are lost from clients that stand still. Both happen in the middle of its move.
func TestDemo(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*testing.T, *lab.Lab) error
		code  int
		says  string
	}{
		{"kube-proxy stopped", losePods, exits.ExitError, "replumb lost"},
		{"clients stopped", stopClients, exits.ExitNotMeasured, "too busy or too slow to measure losses"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := bringUp(t, named("e2e-demo"))
			var out, progress bytes.Buffer
			spoiled := make(chan error, 1)
			go func() { spoiled <- inTheMiddle(t, l, tt.spoil) }()
			err := demo.Run(t.Context(), demo.Options{
				Cluster:    l.Workers(),
				Replumb:    filepath.Join(binaries(t), "replumb"),
				From:       l.Topology.ServiceCIDR,
				ProxyModes: l.ProxyModes(),
				To:         netip.MustParsePrefix(demoTarget),
				Result:     filepath.Join(t.TempDir(), "result.json"),
				Out:        &out,
				Progress:   &progress,
			})
			if spoilErr := <-spoiled; spoilErr != nil {
				t.Errorf("nothing was spoiled: %v", spoilErr)
			}
			if code, _ := exits.ExitCode(err); err == nil || code != tt.code || !strings.Contains(err.Error(), tt.says) {
				t.Errorf(
					"the demo ended with %v, exit code %d; want %q and %d\n%s\n%s",
					err,
					code,
					tt.says,
					tt.code,
					progress.String(),
					out.String(),
				)
			}
			t.Logf("%v\n%s", err, out.String())
		})
	}
}

// inTheMiddle spoils a demo when the first of its Services has moved.
func inTheMiddle(t *testing.T, l *lab.Lab, spoil func(*testing.T, *lab.Lab) error) error {
	target := netip.MustParsePrefix(demoTarget)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	watch, err := l.Client().CoreV1().Services(shopNamespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for range watch.ResultChan() {
		services, err := l.Client().
			CoreV1().
			Services(shopNamespace).
			List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=cart"})
		if err != nil {
			return err
		}
		for _, s := range services.Items {
			if address, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && target.Contains(address) {
				return spoil(t, l)
			}
		}
	}
	return errors.New("no Service has moved")
}

// losePods has one node lead to pods that have ended: its kube-proxy is stopped while those behind a Service are replaced.
func losePods(t *testing.T, l *lab.Lab) error {
	resume := stopProxy(t, l, "node1")
	defer resume()
	pods := l.Client().CoreV1().Pods(shopNamespace)
	cart := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=cart"}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	if err := pods.DeleteCollection(t.Context(), now, cart); err != nil {
		return err
	}
	return elapse(t, 10*time.Second)
}

// stopClients stops the demo's clients for as long as a request may take.
func stopClients(t *testing.T, l *lab.Lab) error {
	clients, err := programsInPods(l, "client")
	if err != nil {
		return err
	}
	if len(clients) < len(l.NodeNames()) {
		return fmt.Errorf("%d clients are running", len(clients))
	}
	for _, pid := range clients {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
		defer func() { _ = unix.Kill(pid, unix.SIGCONT) }()
	}
	return elapse(t, 5*time.Second)
}

// elapse lets a fault last.
func elapse(t *testing.T, length time.Duration) error {
	over := time.NewTimer(length)
	defer over.Stop()
	select {
	case <-over.C:
		return nil
	case <-t.Context().Done():
		return t.Context().Err()
	}
}

// programsInPods finds the processes of a lab's pods that run a program of a name.
func programsInPods(l *lab.Lab, name string) ([]int, error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, file := range names {
		comm, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(comm)) != name { // processes end all the time
			continue
		}
		cgroups, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cgroup"))
		if err != nil || !strings.Contains(string(cgroups), "/replumb-lab-"+l.Topology.Name+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		found = append(found, pid)
	}
	return found, nil
}
