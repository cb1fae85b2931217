package lab

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/lab/machine"
)

// pollInterval is how often something is looked at that cannot be watched.
const pollInterval = 50 * time.Millisecond

// until calls condition until it returns no error or ctx ends, and says what it was waiting for and what was wrong
// last.
func until(ctx context.Context, what string, condition func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := condition(ctx); err != nil {
			if ctx.Err() == nil { // the end of ctx is not what was wrong
				last = err
			}
			return false, nil
		}
		return true, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("waiting for %s: %w: %w", what, err, last)
	}
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// configureCluster waits for the API server and gives the cluster what an installer would: rights, DNS, and the
// nodes' pod networks.
func (l Addons) configureCluster(ctx context.Context, o Options) error {
	client := l.Client()
	err := until(ctx, "the API server", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		return err
	}
	o.say("API server is ready at https://127.0.0.1:%d", l.Port)
	manifests, err := l.manifests()
	if err != nil {
		return err
	}
	err = until(ctx, "the API server to accept the cluster's own objects", func(ctx context.Context) error {
		_, err := l.kubectl(ctx, bytes.NewReader(manifests), "apply", "--server-side", "-f", "-")
		return err
	})
	if err != nil {
		return err
	}
	if l.Topology.ProxyPods {
		if err := l.installProxies(ctx, commas(l.Topology.PodCIDRs())); err != nil {
			return err
		}
	}
	switch l.Topology.CNI {
	case Calico, CalicoCrossSubnet:
		return l.installCalico(ctx, client)
	case Flannel:
		return l.installFlannel(ctx)
	case Cilium:
		return l.installCilium(ctx)
	default:
		return nil // the agents on the machines do the rest: see podnet
	}
}

//go:embed addons.yaml
var addonsTemplate string

// addons are the objects kubeadm and its DNS add-on phase create.
func (l Addons) manifests() ([]byte, error) {
	t, err := template.New("addons.yaml").Parse(addonsTemplate)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{
		"DNS":           l.Topology.dns(),
		"Domain":        clusterDomain,
		"Image":         imageRef("coredns"),
		"Replicas":      min(2, max(1, len(l.with(Worker)))),
		"KubeletClient": kubeletClientUser,
		"PodNet":        podnetUser,
		"Edge":          l.Topology.Edge,
	})
	return out.Bytes(), err
}

// waitContainerd waits until the node's containerd takes connections.
func (l Workers) waitContainerd(ctx context.Context, m *machine.Handle) error {
	socket, err := m.Path(ctx, containerdSocket)
	if err != nil {
		return err
	}
	return until(ctx, "its socket", func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", socket)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// waitReady waits until every node and cluster DNS is ready.
func (l Addons) waitReady(ctx context.Context, o Options) error {
	client := l.Client()
	for _, name := range l.NodeNames() {
		if err := l.Workers().waitNode(ctx, client, name); err != nil {
			return err
		}
	}
	if len(l.with(Worker)) == 0 {
		return nil
	}
	o.say("%d nodes are Ready", len(l.with(Worker)))
	err := until(ctx, "cluster DNS", func(ctx context.Context) error {
		dns, err := client.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return deploymentReady(dns)
	})
	if err == nil {
		o.say("cluster DNS is ready")
	}
	return err
}

func (l Workers) waitNode(ctx context.Context, client kubernetes.Interface, name string) error {
	return until(ctx, "node "+name+" to be Ready", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return nodeReady(node)
	})
}

func nodeReady(node *corev1.Node) error {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
	}
	return errors.New("node has not reported yet")
}

func deploymentReady(d *appsv1.Deployment) error {
	if want, have := *d.Spec.Replicas, d.Status.ReadyReplicas; have < want {
		return fmt.Errorf("%d of %d replicas are ready", have, want)
	}
	return nil
}

// explain adds to an error of a start that failed the last words of programs that keep ending.
func (l *Lab) explain(err error) error {
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, name := range l.Machines() {
		m, openErr := l.Machine(name)
		if openErr != nil {
			continue
		}
		info, infoErr := m.Info(ctx)
		if infoErr != nil {
			continue
		}
		for _, p := range info.Programs {
			if p.PID == 0 || p.Restarts > 2 {
				log, _ := os.ReadFile(filepath.Join(m.Spec.LogDir(), p.Name+".log"))
				err = fmt.Errorf("%w\n%s on %s (%s, %d restarts) said last:\n%s", err, p.Name, name, p.LastExit, p.Restarts, tail(log, 5))
			}
		}
	}
	return err
}

func tail(log []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-n):], "\n  ")
}
