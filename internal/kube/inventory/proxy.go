package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/kube/references"
)

// Proxy is a configuration of kube-proxy in an Object, as kind and name.
type Proxy struct {
	Object string
	// Hidden is true if it is in a file that is in no object.
	Hidden  bool
	Problem string
	// Mode as written; empty means iptables.
	Mode string
	// DetectLocalMode as written; empty means ClusterCIDR.
	DetectLocalMode string
	ClusterCIDRs    []netip.Prefix
	// LocalInterface is the bridge of pods, or the prefix of the names of their interfaces.
	LocalInterface string
}

// Replacement does the work of kube-proxy.
type Replacement struct {
	Object string // as kind and name
	// By names the program, and the setting that shows it.
	By string
}

// NodeLocal is a NodeLocal DNSCache.
type NodeLocal struct {
	Object    string
	Addresses []string
}

// TakeFelix takes Calico's FelixConfiguration, as JSON or YAML
// (github.com/projectcalico/api pkg/apis/projectcalico/v3/felixconfig.go).
func (i *Scan) TakeFelix(body []byte) error {
	var felix struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			BPFEnabled bool `json:"bpfEnabled"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(body, &felix); err != nil {
		return fmt.Errorf("reading Calico's FelixConfiguration: %w", err)
	}
	if felix.Spec.BPFEnabled {
		i.replacedBy("FelixConfiguration "+felix.Metadata.Name, "Calico's eBPF data plane (bpfEnabled)")
	}
	return nil
}

func servesCluster(corefile string) bool {
	for line := range strings.Lines(corefile) {
		if words := strings.Fields(line); len(words) > 0 && words[0] == "kubernetes" {
			return true
		}
	}
	return false
}

func (i *Scan) takeConfigMap(o *corev1.ConfigMap) {
	name := references.Name("ConfigMap", o)
	if o.Name == "cilium-config" {
		i.takeCiliumMode(o)
	}
	if text, ok := o.Data["antrea-agent.conf"]; ok {
		var config struct {
			AntreaProxy struct {
				ProxyAll bool `json:"proxyAll"`
			} `json:"antreaProxy"`
		}
		if err := yaml.Unmarshal([]byte(text), &config); err == nil && config.AntreaProxy.ProxyAll {
			i.replacedBy(name, "Antrea (antreaProxy.proxyAll)")
		}
	}
	if file, ok := o.Data["Corefile"]; ok && servesCluster(file) && !strings.Contains(file, "lameduck") {
		if i.Abrupt == nil {
			i.Abrupt = map[string]string{}
		}
		i.Abrupt[o.Namespace] = name
	}
	i.Proxies = append(i.Proxies, ProxiesIn(o)...)
}

// OfProxy reports whether a range stands in a ConfigMap that configures kube-proxy, which takes one
// of a family.
func (i *Scan) OfProxy(r references.Reference) bool {
	return r.Kind() == "ConfigMap" && strings.Contains(r.Value, "/") && slices.ContainsFunc(i.Proxies, func(p Proxy) bool { return p.Object == r.Object })
}

// ProxiesIn are the configurations of kube-proxy in a ConfigMap, if it is in kube-system.
func ProxiesIn(o *corev1.ConfigMap) (all []Proxy) {
	if o.Namespace != metav1.NamespaceSystem {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		if strings.Contains(o.Data[key], "KubeProxyConfiguration") {
			all = append(all, proxyFromFile(references.Name("ConfigMap", o), o.Data[key]))
		}
	}
	return all
}

// ProxiesOf are the configurations in the flags of kube-proxies that an object runs.
func ProxiesOf(object string, spec *corev1.PodSpec) (all []Proxy) {
	for n := range spec.Containers {
		if c := &spec.Containers[n]; isProxy(c) {
			all = append(all, proxyFromFlags(object, commandLine(c)))
		}
	}
	return all
}

func isProxy(c *corev1.Container) bool {
	return c.Name == "kube-proxy" || runs(commandLine(c), "kube-proxy")
}

func proxyFromFile(object, text string) Proxy {
	p := Proxy{Object: object}
	var config proxyv1alpha1.KubeProxyConfiguration
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		p.Problem = err.Error()
		return p
	}
	p.Mode, p.DetectLocalMode = string(config.Mode), string(config.DetectLocalMode)
	p.LocalInterface = cmp.Or(config.DetectLocal.BridgeInterface, config.DetectLocal.InterfaceNamePrefix)
	p.setRanges(config.ClusterCIDR)
	return p
}

func (p *Proxy) setRanges(text string) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		r, err := netip.ParsePrefix(part)
		if err != nil {
			p.Problem = fmt.Sprintf("clusterCIDR %q is not a range", part)
			continue
		}
		p.ClusterCIDRs = append(p.ClusterCIDRs, r.Masked())
	}
}

// takeWorkload recognises programs that handle Services and DNS on nodes.
func (i *Scan) takeWorkload(object string, spec *corev1.PodSpec) {
	if strings.HasPrefix(object, "DaemonSet ") && strings.HasSuffix(object, "/ovnkube-node") {
		i.replacedBy(object, "OVN-Kubernetes")
	}
	i.Proxies = append(i.Proxies, ProxiesOf(object, spec)...)
	for n := range spec.Containers {
		c := &spec.Containers[n]
		words := commandLine(c)
		i.takePublished(object, c, words)
		switch {
		case isProxy(c):
		case c.Name == "kube-router" || runs(words, "kube-router"):
			if v, ok := flag(words, "run-service-proxy"); !ok || v != "false" {
				i.replacedBy(object, "kube-router (--run-service-proxy)")
			}
		case c.Name == "nsx-kube-proxy": // VMware's NSX, DaemonSet nsx-node-agent
			i.replacedBy(object, "NSX (nsx-kube-proxy)")
		case isNodeLocal(object, c):
			v, _ := flag(words, "localip")
			i.NodeLocal = append(i.NodeLocal, NodeLocal{
				Object: object, Addresses: strings.FieldsFunc(v, func(r rune) bool { return r == ',' }),
			})
		case slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == "FELIX_BPFENABLED" && strings.EqualFold(e.Value, "true")
		}):
			i.replacedBy(object, "Calico's eBPF data plane (FELIX_BPFENABLED)")
		}
	}
}

// isNodeLocal goes by Kubernetes' own name of the DaemonSet, or by the program, which is the entry
// point of its image (cluster/addons/dns/nodelocaldns in k8s.io/kubernetes, and Kubespray's
// roles/kubernetes-apps/ansible/templates/nodelocaldns-daemonset.yml.j2).
func isNodeLocal(object string, c *corev1.Container) bool {
	return strings.HasSuffix(object, "/node-local-dns") || c.Name == "node-cache" ||
		strings.HasSuffix(imageName(c.Image), "node-cache") || runs(commandLine(c), "node-cache")
}

// publishing are flags of ingress controllers that name the Service whose addresses they publish:
// ingress-nginx (pkg/flags/flags.go), HAProxy and Contour alike; Traefik
// (pkg/provider/kubernetes/ingress).
func publishing() []string {
	return []string{
		"publish-service", "providers.kubernetesingress.ingressendpoint.publishedservice",
		"providers.kubernetesingressnginx.publishservice",
	}
}

// takePublished notes the Service that an ingress controller publishes. Kong has it in its
// environment.
func (i *Scan) takePublished(object string, c *corev1.Container, words []string) {
	var named []string
	for _, name := range publishing() {
		if v, ok := flag(words, name); ok {
			named = append(named, v)
		}
	}
	for _, e := range c.Env {
		if e.Name == "CONTROLLER_PUBLISH_SERVICE" {
			named = append(named, e.Value)
		}
	}
	_, at, _ := strings.Cut(object, " ")
	own, _, _ := strings.Cut(at, "/")
	for _, v := range named {
		namespace, name, ok := strings.Cut(v, "/")
		if !ok {
			continue
		}
		if strings.HasPrefix(namespace, "$(") { // the chart of ingress-nginx has its own, from the environment
			namespace = own
		}
		if i.Published == nil {
			i.Published = map[types.NamespacedName]string{}
		}
		i.Published[types.NamespacedName{Namespace: namespace, Name: name}] = object
	}
}

func (i *Scan) replacedBy(object, by string) {
	i.Replacements = append(i.Replacements, Replacement{Object: object, By: by})
}

func proxyFromFlags(object string, words []string) Proxy {
	p := Proxy{Object: object}
	// --config overrides the other flags (k8s.io/kubernetes cmd/kube-proxy/app/options.go).
	if _, p.Hidden = flag(words, "config"); p.Hidden {
		return p
	}
	p.Mode, _ = flag(words, "proxy-mode")
	p.DetectLocalMode, _ = flag(words, "detect-local-mode")
	bridge, _ := flag(words, "pod-bridge-interface")
	prefix, _ := flag(words, "pod-interface-name-prefix")
	p.LocalInterface = cmp.Or(bridge, prefix)
	ranges, _ := flag(words, "cluster-cidr")
	p.setRanges(ranges)
	return p
}

// runs looks at all words, since the command line may be a shell's.
func runs(words []string, program string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return path.Base(strings.Trim(w, `"'`)) == program })
}

// flag finds the value of a flag written as --name=value, --name value or alone.
func flag(words []string, name string) (string, bool) {
	for i, w := range words {
		trimmed := strings.TrimLeft(strings.Trim(w, `"'`), "-")
		if trimmed == w || !strings.HasPrefix(trimmed, name) {
			continue
		}
		if value, ok := strings.CutPrefix(trimmed, name+"="); ok {
			return strings.Trim(value, `"'`), true
		}
		if trimmed == name {
			if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				return strings.Trim(words[i+1], `"'`), true
			}
			return "", true
		}
	}
	return "", false
}
