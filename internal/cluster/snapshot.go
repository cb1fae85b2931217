package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// pageSize of lists, as kubectl has it.
const pageSize = 500

// Snapshot is a picture of the cluster. Nothing changes it once it is loaded.
type Snapshot struct {
	Version      *version.Info
	ServiceCIDRs []networkingv1.ServiceCIDR
	IPAddresses  []networkingv1.IPAddress
	Services     []corev1.Service
	Nodes        []corev1.Node
	// Ending are the namespaces that are being removed: nothing can be created in them any more.
	Ending map[string]bool
	// Access is what was asked of the authorizer, with its answers.
	Access []AccessAnswer
	// Kubelets by node, as they say themselves.
	Kubelets map[string]KubeletAnswer
	// Admitted says of each bridge form that was tried why it was refused; nil means it was admitted.
	Admitted map[v1alpha1.BridgeForm]error
}

// KubeletAnswer is what a kubelet said of the cluster DNS it gives to pods.
type KubeletAnswer struct {
	// Domain is its clusterDomain.
	Domain string
	// DNS are the addresses of its clusterDNS.
	DNS []string
	Err error
}

// Load reads what plans need.
func (c *Cluster) Load(ctx context.Context) (*Snapshot, error) {
	v, err := c.ServerVersion(ctx)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Version: v}
	if s.ServiceCIDRs, err = list[networkingv1.ServiceCIDR](ctx, c, &networkingv1.ServiceCIDRList{}); err != nil {
		return nil, err
	}
	if s.IPAddresses, err = list[networkingv1.IPAddress](ctx, c, &networkingv1.IPAddressList{}); err != nil {
		return nil, err
	}
	if s.Services, err = list[corev1.Service](ctx, c, &corev1.ServiceList{}); err != nil {
		return nil, err
	}
	if s.Nodes, err = list[corev1.Node](ctx, c, &corev1.NodeList{}); err != nil {
		return nil, err
	}
	if s.Ending, err = c.endingNamespaces(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (c *Cluster) endingNamespaces(ctx context.Context) (map[string]bool, error) {
	all, err := list[corev1.Namespace](ctx, c, &corev1.NamespaceList{})
	if err != nil {
		return nil, err
	}
	ending := map[string]bool{}
	for i := range all {
		if !all[i].DeletionTimestamp.IsZero() {
			ending[all[i].Name] = true
		}
	}
	return ending, nil
}

// list reads a whole collection page by page.
func list[T any](ctx context.Context, c client.Client, into client.ObjectList, opts ...client.ListOption) ([]T, error) {
	var all []T
	token := ""
	for {
		page := append([]client.ListOption{client.Limit(pageSize), client.Continue(token)}, opts...)
		if err := c.List(ctx, into, page...); err != nil {
			return nil, fmt.Errorf("listing %T: %w", *new(T), err)
		}
		items, err := meta.ExtractList(into)
		if err != nil {
			return nil, fmt.Errorf("listing %T: %w", *new(T), err)
		}
		for _, item := range items {
			all = append(all, *any(item).(*T))
		}
		if token = into.GetContinue(); token == "" {
			return all, nil
		}
	}
}

// Service finds a Service in the picture.
func (s *Snapshot) Service(key types.NamespacedName) *corev1.Service {
	for i := range s.Services {
		if s.Services[i].Namespace == key.Namespace && s.Services[i].Name == key.Name {
			return &s.Services[i]
		}
	}
	return nil
}

// Kubelet asks a node's kubelet for its configuration, through the API server
// (k8s.io/kubernetes pkg/kubelet/server, /configz).
func (c *Cluster) Kubelet(ctx context.Context, node string) KubeletAnswer {
	body, err := c.GetRaw(ctx, "/api/v1/nodes/"+node+"/proxy/configz")
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

// NodeReady reports whether a node's Ready condition is true.
func NodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// InternalIP is the first internal address of a node.
func InternalIP(n *corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

func decodeVersion(body []byte) (*version.Info, error) {
	v := &version.Info{}
	if err := json.Unmarshal(body, v); err != nil {
		return nil, fmt.Errorf("reading the server's version: %w", err)
	}
	return v, nil
}
