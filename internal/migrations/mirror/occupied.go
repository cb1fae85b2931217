package mirror

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// TakenPort is a node port of a copy that another Service of the target has.
type TakenPort struct {
	Port           int32
	Service, Owner string
}

type nodePort struct {
	protocol corev1.Protocol
	port     int32
}

// lookAtPorts finds node ports that copies keep and cannot have.
func (j *Job) lookAtPorts(ctx context.Context, s *Inventory) error {
	if s.Serving() != v1alpha1.ServingSource || s.Spec.Copy.NodePorts == v1alpha1.NodePortsStrip {
		return nil
	}
	there, err := cluster.List[corev1.Service](ctx, j.to, &corev1.ServiceList{})
	if err != nil {
		return err
	}
	copied := map[string][]nodePort{}
	err = j.eachTaken(ctx, objects.Services(), func(_, taken *unstructured.Unstructured) error {
		copied[taken.GetNamespace()+"/"+taken.GetName()] = portsOf(taken)
		return nil
	})
	s.Taken = taken(copied, there)
	return err
}

func portsOf(o *unstructured.Unstructured) []nodePort {
	var out []nodePort
	ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
	for _, p := range ports {
		m, _ := p.(map[string]any)
		number, _, _ := unstructured.NestedInt64(m, "nodePort")
		protocol, _, _ := unstructured.NestedString(m, "protocol")
		if number > 0 {
			out = append(out, nodePort{corev1.Protocol(protocol), int32(number)}) //nolint:gosec // a port
		}
	}
	return out
}

// taken compares by protocol: one number may be a TCP and a UDP port of two Services.
func taken(copied map[string][]nodePort, there []corev1.Service) []TakenPort {
	var out []TakenPort
	for i := range there {
		owner := there[i].Namespace + "/" + there[i].Name
		for _, p := range there[i].Spec.Ports {
			for service, ports := range copied {
				if service != owner && p.NodePort > 0 && slices.Contains(ports, nodePort{p.Protocol, p.NodePort}) {
					out = append(out, TakenPort{Port: p.NodePort, Service: service, Owner: owner})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b TakenPort) int { return int(a.Port) - int(b.Port) })
	return out
}

// noProvisioner is the provisioner of storage classes whose volumes people make.
const noProvisioner = "kubernetes.io/no-provisioner"

// whyUnprovided says why the copy of a claim is never bound; empty, if it can be.
func whyUnprovided(claim, class string, manual []string, volumes []corev1.PersistentVolume) string {
	if class != "" && !slices.Contains(manual, class) {
		return ""
	}
	for i := range volumes {
		v := &volumes[i]
		ref := v.Spec.ClaimRef
		if v.Spec.StorageClassName == class && (ref == nil || ref.Namespace+"/"+ref.Name == claim) {
			return ""
		}
	}
	if class == "" {
		return "has no storage class, so nothing makes a volume for its copy"
	}
	return fmt.Sprintf("has storage class %s, for which nothing makes volumes in the target", class)
}
