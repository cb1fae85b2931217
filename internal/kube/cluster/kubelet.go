package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

const (
	// kubeletsAtOnce bounds how many kubelets are asked at the same time.
	kubeletsAtOnce = 32
	// kubeletPatience is how long one kubelet is waited for.
	kubeletPatience = 5 * time.Second
)

// KubeletAnswer is what a kubelet said of the cluster DNS it gives to pods.
type KubeletAnswer struct {
	// Domain is its clusterDomain.
	Domain string
	// DNS are the addresses of its clusterDNS.
	DNS []string
	// Err is why it did not answer.
	Err error
}

// KubeletPath is where an API server leads to the configuration of a node's kubelet.
func KubeletPath(node string) string { return "/api/v1/nodes/" + node + "/proxy/configz" }

// Kubelets asks every ready node for the cluster DNS it gives to pods. The answers are by node; one
// that does not answer has an error in its answer.
func Kubelets(ctx context.Context, c *Cluster, nodes []corev1.Node) map[string]KubeletAnswer {
	answers := make([]KubeletAnswer, len(nodes))
	var eg errgroup.Group
	eg.SetLimit(kubeletsAtOnce)
	for i := range nodes {
		if !NodeReady(&nodes[i]) {
			continue
		}
		eg.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, kubeletPatience)
			defer cancel()
			answers[i] = AskKubelet(ctx, c, nodes[i].Name)
			return nil
		})
	}
	_ = eg.Wait() // an error is part of its answer
	byNode := map[string]KubeletAnswer{}
	for i := range nodes {
		if NodeReady(&nodes[i]) {
			byNode[nodes[i].Name] = answers[i]
		}
	}
	return byNode
}

// AskKubelet asks a node's kubelet for its configuration, through the API server
// (k8s.io/kubernetes pkg/kubelet/server, /configz).
func AskKubelet(ctx context.Context, c *Cluster, node string) KubeletAnswer {
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
