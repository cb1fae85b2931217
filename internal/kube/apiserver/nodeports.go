package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
)

const nodePortFlag = "service-node-port-range"

// NodePorts is the range of node ports; zero is the default range.
type NodePorts struct {
	Range utilnet.PortRange
	// Seen is false if no API server said it.
	Seen bool
}

// defaultNodePorts is DefaultServiceNodePortRange (k8s.io/kubernetes pkg/kubeapiserver/options).
func defaultNodePorts() utilnet.PortRange { return utilnet.PortRange{Base: 30000, Size: 2768} }

func (n NodePorts) Size() int {
	if n.Range.Size == 0 {
		return defaultNodePorts().Size
	}
	return n.Range.Size
}

func (n NodePorts) String() string {
	if n.Range.Size == 0 {
		r := defaultNodePorts()
		return fmt.Sprintf("the usual %d node ports (--%s of the API servers could not be seen)", r.Size, nodePortFlag)
	}
	return fmt.Sprintf("the %d node ports %s", n.Range.Size, n.Range.String())
}

// Flags asks the API server that answers for its flags. kind is the media type of the body.
func Flags(ctx context.Context, c *cluster.Cluster) (body []byte, kind string, err error) {
	return c.GetAs(ctx, "/flagz", accept)
}

// SeeNodePorts asks for --service-node-port-range, or else takes the smallest range from the
// command lines of API server pods.
func SeeNodePorts(ctx context.Context, c *cluster.Cluster) (NodePorts, error) {
	body, kind, err := Flags(ctx, c)
	if err == nil {
		if value, found, err := flagIn(kind, body, nodePortFlag); err == nil && found {
			return nodePorts(value)
		}
	}
	if ctx.Err() != nil {
		return NodePorts{}, ctx.Err()
	}
	pods, err := controlplane.APIServer.Pods(ctx, c)
	if apierrors.IsForbidden(err) {
		return NodePorts{}, nil
	}
	if err != nil {
		return NodePorts{}, fmt.Errorf("listing the pods of API servers: %w", err)
	}
	var least NodePorts
	for i := range pods {
		value, found := commandFlag(&pods[i], nodePortFlag)
		if !controlplane.APIServer.IsStatic(&pods[i]) || !found {
			continue
		}
		if n, err := nodePorts(value); err == nil && (!least.Seen || n.Size() < least.Size()) {
			least = n
		}
	}
	return least, nil
}

func nodePorts(value string) (NodePorts, error) {
	r, err := utilnet.ParsePortRange(value)
	if err != nil {
		return NodePorts{}, fmt.Errorf("--%s: %w", nodePortFlag, err)
	}
	return NodePorts{Range: *r, Seen: true}, nil
}
