package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/cluster"
)

const (
	kubeletsAtOnce  = 32
	kubeletPatience = 5 * time.Second
)

// KubeletAnswer is the cluster DNS that a kubelet gives to pods, or Err.
type KubeletAnswer struct {
	Domain string
	DNS    []string
	Err    error
}

// KubeletPath is the API server's proxy to the configuration of a node's kubelet.
func KubeletPath(node string) string { return "/api/v1/nodes/" + node + "/proxy/configz" }

// Kubelets asks every ready node. Answers are by node, and have an error for one that gave none.
func Kubelets(ctx context.Context, c *cluster.Cluster, nodes []corev1.Node) map[string]KubeletAnswer {
	byNode := map[string]KubeletAnswer{}
	var mu sync.Mutex
	var eg errgroup.Group
	eg.SetLimit(kubeletsAtOnce)
	for i := range nodes {
		if !NodeReady(&nodes[i]) {
			continue
		}
		eg.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, kubeletPatience)
			defer cancel()
			answer := AskKubelet(ctx, c, nodes[i].Name)
			mu.Lock()
			defer mu.Unlock()
			byNode[nodes[i].Name] = answer
			return nil
		})
	}
	_ = eg.Wait() // errors are in the answers
	return byNode
}

// AskKubelet reads /configz of a node's kubelet (k8s.io/kubernetes pkg/kubelet/server) through the
// API server.
func AskKubelet(ctx context.Context, c *cluster.Cluster, node string) KubeletAnswer {
	body, err := c.GetRaw(ctx, KubeletPath(node))
	if err != nil {
		return KubeletAnswer{Err: err}
	}
	var config struct {
		KubeletConfig struct {
			ClusterDomain string   `json:"clusterDomain"`
			ClusterDNS    []string `json:"clusterDNS"`
		} `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(body, &config); err != nil {
		return KubeletAnswer{Err: fmt.Errorf("reading the configuration of node %s: %w", node, err)}
	}
	if config.KubeletConfig.ClusterDomain == "" {
		return KubeletAnswer{Err: errors.New("the kubelet names no cluster domain")}
	}
	return KubeletAnswer{Domain: config.KubeletConfig.ClusterDomain, DNS: config.KubeletConfig.ClusterDNS}
}
