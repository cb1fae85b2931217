package inventory

import (
	"path"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/references"
)

// Plane is a data plane that handles traffic of pods before kube-proxy does.
type Plane string

// Data planes beside kube-proxy, or instead of it.
const (
	PlaneCilium  Plane = "Cilium"
	PlaneAntrea  Plane = "Antrea"
	PlaneKubeOVN Plane = "Kube-OVN"
	PlaneAWS     Plane = "the AWS network policy agent"
)

// DataPlane is the agent of a Plane, which an Object runs, as kind and name.
type DataPlane struct {
	Object string
	Plane  Plane
	// Version is the tag of its image; empty for a digest, or a tag that is no version.
	Version string
}

// planeOf follows the manifests of Cilium (install/kubernetes/cilium, also GKE's anetd), Antrea
// (build/charts/antrea), Kube-OVN and the VPC CNI (charts/aws-vpc-cni), whose agent judges nothing
// without --enable-network-policy.
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

func (i *Scan) takePlanes(object string, spec *corev1.PodSpec) {
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

func (i *Scan) takeCiliumMode(o *corev1.ConfigMap) {
	value, given := o.Data["kube-proxy-replacement"]
	if !given {
		return
	}
	m := CiliumMode{Object: references.Name("ConfigMap", o), Value: value}
	if i.CiliumModes = append(i.CiliumModes, m); m.Replaces() {
		i.replacedBy(m.Object, "Cilium (kube-proxy-replacement: "+value+")")
	}
}

// CiliumMode is the kube-proxy-replacement in a ConfigMap of Cilium.
type CiliumMode struct{ Object, Value string }

// Replaces reports whether Cilium replaces kube-proxy (docs.cilium.io, kubeproxy-free: true, and
// strict, partial or probe in earlier versions).
func (m CiliumMode) Replaces() bool {
	return slices.Contains([]string{"true", "strict", "partial", "probe"}, m.Value)
}

func commandLine(c *corev1.Container) []string {
	return strings.Fields(strings.Join(slices.Concat(c.Command, c.Args), " "))
}

func imageName(image string) string {
	name, _, _ := strings.Cut(image, "@")
	name, _, _ = strings.Cut(path.Base(name), ":")
	return name
}

// imageVersion is the tag of an image, or empty if that is no version.
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

// ProxySets are the DaemonSets that run kube-proxy on nodes with Linux.
func ProxySets(all []appsv1.DaemonSet) []appsv1.DaemonSet {
	var out []appsv1.DaemonSet
	for i := range all {
		template := &all[i].Spec.Template.Spec
		if len(ProxiesOf("", template)) > 0 && template.NodeSelector[corev1.LabelOSStable] != "windows" {
			out = append(out, all[i])
		}
	}
	return out
}
