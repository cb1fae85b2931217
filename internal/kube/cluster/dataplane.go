package cluster

import (
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/references"
)

// Plane is a kind of data plane that handles what pods send before kube-proxy does.
type Plane string

// The data planes that stand beside kube-proxy.
const (
	PlaneCilium  Plane = "Cilium"
	PlaneAntrea  Plane = "Antrea"
	PlaneKubeOVN Plane = "Kube-OVN"
	PlaneAWS     Plane = "the AWS network policy agent"
)

// DataPlane is one that runs in the cluster.
type DataPlane struct {
	// Object that shows it, as kind and name.
	Object string
	Plane  Plane
	// Version is the tag of its image; empty if the image is named by its digest alone, or by a tag
	// that is no version.
	Version string
}

// planeOf recognises the agent of a data plane by what upstream's manifests call its container, its
// image and its program: Cilium's chart (install/kubernetes/cilium, also as GKE's anetd), Antrea's
// (build/charts/antrea), Kube-OVN's, and the one of the VPC CNI (charts/aws-vpc-cni), whose agent
// judges nothing as long as --enable-network-policy is false, which is the flag's default.
func planeOf(c *corev1.Container, words []string) (Plane, bool) {
	image := imageName(c.Image)
	switch {
	case c.Name == "cilium-agent" || image == "cilium" || runs(words, "cilium-agent"):
		return PlaneCilium, true
	case c.Name == "antrea-agent" || runs(words, "antrea-agent"):
		return PlaneAntrea, true
	case c.Name == "cni-server" && image == "kube-ovn":
		return PlaneKubeOVN, true
	case c.Name == "aws-eks-nodeagent" || image == "aws-network-policy-agent":
		on, given := flag(words, "enable-network-policy")
		return PlaneAWS, given && on != "false"
	}
	return "", false
}

// planes finds the data planes that a workload runs.
func (i *Inspection) planes(object string, spec *corev1.PodSpec) {
	for n := range spec.Containers {
		c := &spec.Containers[n]
		if plane, yes := planeOf(c, commandLine(c)); yes {
			found := DataPlane{Object: object, Plane: plane, Version: imageVersion(c.Image)}
			if !slices.Contains(i.Planes, found) {
				i.Planes = append(i.Planes, found)
			}
		}
	}
}

// ciliumMode keeps what Cilium's configuration says of kube-proxy.
func (i *Inspection) ciliumMode(o *corev1.ConfigMap) {
	value, given := o.Data["kube-proxy-replacement"]
	if !given {
		return
	}
	m := CiliumMode{Object: references.Name("ConfigMap", o), Value: value}
	if i.CiliumModes = append(i.CiliumModes, m); m.Replaces() {
		i.Replacements = append(i.Replacements, Replacement{Object: m.Object, By: "Cilium (kube-proxy-replacement: " + value + ")"})
	}
}

// CiliumMode is the kube-proxy-replacement of a ConfigMap of Cilium's.
type CiliumMode struct{ Object, Value string }

// Replaces reports whether Cilium does the work of kube-proxy (docs.cilium.io, kubeproxy-free:
// true, and in earlier versions strict, partial or probe).
func (m CiliumMode) Replaces() bool {
	return slices.Contains([]string{"true", "strict", "partial", "probe"}, m.Value)
}

func commandLine(c *corev1.Container) []string {
	return strings.Fields(strings.Join(slices.Concat(c.Command, c.Args), " "))
}

// imageName is the last part of an image's name, without registry, tag and digest.
func imageName(image string) string {
	name, _, _ := strings.Cut(image, "@")
	name, _, _ = strings.Cut(path.Base(name), ":")
	return name
}

// imageVersion is the tag of an image, if it has a number with a dot in it.
func imageVersion(image string) string {
	name, _, _ := strings.Cut(image, "@")
	_, tag, _ := strings.Cut(path.Base(name), ":")
	if _, _, ok := Minor(tag); !ok {
		return ""
	}
	return tag
}

// Minor reads the first two numbers of a version such as v1.18.4, edge-25.8.1 or 1.27.1-distroless.
func Minor(version string) (major, minor int, ok bool) {
	at := strings.IndexFunc(version, isDigit)
	if at < 0 {
		return 0, 0, false
	}
	first, rest, dotted := strings.Cut(version[at:], ".")
	if end := strings.IndexFunc(rest, func(r rune) bool { return !isDigit(r) }); end >= 0 {
		rest = rest[:end]
	}
	major, errMajor := strconv.Atoi(first)
	minor, errMinor := strconv.Atoi(rest)
	return major, minor, dotted && errMajor == nil && errMinor == nil
}

func isDigit(r rune) bool { return r >= '0' && r <= '9' }
