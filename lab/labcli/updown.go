package labcli

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/lab"
)

type upFlags struct {
	name, proxy             string
	nodes, controlPlanes    int
	families                string
	serviceCIDR, podCIDR    string
	networks                []string
	kubeconfig, cni, beside string
	proxyPods               bool
	installer               string
	fabric                  string
	keep, edge              bool
	registry                string
	with                    []string
	certManager, flux       bool
	clusterAPI              bool
	kubernetes              string
	gates, served           string
}

const upExamples = `  # two nodes, one with each proxy mode
  replumb-lab up
  export KUBECONFIG=$(replumb-lab kubeconfig)

  # a second one beside it, with ranges of its own
  replumb-lab up --name other --nodes 3 --proxy nftables --service-cidr 10.112.0.0/16

  # one with Calico, which enforces NetworkPolicies
  replumb-lab up --name calico --cni calico

  # one with flannel, in pods as upstream runs it, and what it takes to give it Calico
  replumb-lab up --name flannel --cni flannel
  replumb-lab manifests calico --name flannel --pod-cidr 10.245.0.0/16

  # one with Cilium, in pods as upstream runs it, in place of kube-proxy
  replumb-lab up --name cilium --cni cilium --proxy none

  # one with IPv6 alone, and one with both families, whose nodes are of IPv4 first
  replumb-lab up --name six --ip-families IPv6
  replumb-lab up --name both --ip-families IPv4,IPv6 --service-cidr 10.96.0.0/16,fd00:10:96::/112

  # one whose API servers can be restarted unnoticed
  replumb-lab up --name ha --control-planes 3

  # one of an older Kubernetes, and one whose Service addresses are IPAddresses all the same
  replumb-lab up --name old --kubernetes 1.31.0
  replumb-lab up --name beta --kubernetes 1.31.0 \
    --feature-gates MultiCIDRServiceAllocator=true --runtime-config networking.k8s.io/v1beta1=true

  # one with a second network beside the nodes', a router away
  replumb-lab up --name vpc --cni calico --networks a=172.30.0.0/24,b=172.31.0.0/24
  replumb-lab node add --name vpc --network b

  # the same, with names in DNS, load balancers and an ingress that people outside the cluster reach it by
  replumb-lab up --name vpc --cni calico --networks a=172.30.0.0/24,b=172.31.0.0/24 --control-planes 3 --edge
  replumb-lab exec --name vpc bastion -- curl http://ingress.lab.example/

  # two clusters whose machines reach each other; the second one is api-right and ingress-right in the same zone
  replumb-lab up --name left --cni flannel --edge --fabric shared
  replumb-lab up --name right --cni calico --edge --fabric shared --networks r=172.31.0.0/24
  replumb-lab exec --name right bastion -- curl http://ingress-right.lab.example/

  # one with an image registry, and certificates for Ingresses of class lab
  replumb-lab up --edge --registry registry.lab.example --cert-manager
  replumb-lab push replumb.local/echo:lab shop/echo:1

  # one that kubeadm makes, as it makes others
  replumb-lab up --name adm --installer kubeadm

  # one whose machines Cluster API makes, from a lab of its own, and replaces
  replumb-lab up --name capi --cluster-api --nodes 1 --control-planes 1
  kubectl --kubeconfig $(replumb-lab kubeconfig --name capi-mgmt) get cluster,kubeadmcontrolplane,machinedeployment,machine

  # one with software that watches Services, load balancers and an API of its own among it
  replumb-lab up --edge --with traefik,metallb,metrics-server,argo-rollouts`

func newUp(s streams) *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a lab up",
		Long: `Bring a lab up, and return when its nodes are Ready and its DNS answers.

The first time, the components are built, which takes 8 to 40 minutes on two cores, depending on what the lab has; after that a lab of two nodes is
up in about 20 seconds. A lab that does not come up is taken down again.`,
		Example: upExamples,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("proxy") { // the default is for two nodes or more
				f.proxy = firstModes(f.proxy, f.nodes)
			}
			if f.clusterAPI {
				f.asClusterAPI(cmd)
			}
			if f.installer != "" && !cmd.Flags().Changed("proxy") { // whose kube-proxies are of one DaemonSet
				f.proxy = string(lab.IPTables)
			}
			t, err := f.topology()
			if err != nil {
				return err
			}
			start := time.Now()
			r := newReporter(s.err)
			l, err := lab.Up(cmd.Context(), t, lab.Options{Progress: r.say, Line: r.liner(), KeepOnFailure: f.keep})
			if err != nil {
				return err
			}
			if err := f.writeKubeconfig(l); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(s.err, "lab %q is up after %s\nhint: export KUBECONFIG=$(replumb-lab kubeconfig --name %s)\n",
				t.Name, time.Since(start).Round(100*time.Millisecond), t.Name)
			return nil
		},
	}
	f.declare(cmd)
	return cmd
}

// declare adds the flags of up.
func (f *upFlags) declare(cmd *cobra.Command) {
	d := lab.Default()
	nameFlag(cmd, &f.name)
	cmd.Flags().IntVar(&f.nodes, "nodes", len(d.Nodes), "number of worker nodes")
	cmd.Flags().IntVar(&f.controlPlanes, "control-planes", d.ControlPlanes,
		"number of control planes, 1 or 3; with 3 the cluster survives the restart of any one")
	cmd.Flags().
		StringVar(&f.proxy, "proxy", "iptables,nftables", "kube-proxy mode of each node in turn: iptables, nftables; or none, with --cni cilium")
	cmd.Flags().
		StringVar(&f.installer, "installer", "", "what makes the cluster: kubeadm, or cluster-api; default is plain programs of the lab's own")
	cmd.Flags().BoolVar(&f.clusterAPI, "cluster-api", false,
		"the same as --installer cluster-api --cni calico --control-planes 3, as far as these are not given; it runs in lab NAME-mgmt")
	cmd.Flags().
		BoolVar(&f.proxyPods, "proxy-pods", false, "kube-proxy in the pods of a DaemonSet, as kubeadm has it; with one mode of --proxy")
	cmd.Flags().StringVar(&f.families, "ip-families", string(lab.IPv4),
		"families of addresses: IPv4, IPv6, or both, as IPv4,IPv6 or IPv6,IPv4; the first is that of nodes and API servers")
	cmd.Flags().StringVar(&f.serviceCIDR, "service-cidr", "",
		"range of Service addresses, or one of each family (default 10.96.0.0/16, fd00:10:96::/112)")
	cmd.Flags().StringVar(&f.podCIDR, "pod-cidr", "",
		"range of pod addresses, or one of each family; each node gets a /24, a /64 (default 10.244.0.0/16, fd00:10:244::/56)")
	cmd.Flags().StringSliceVar(&f.networks, "networks", nil,
		"networks of machines, as name=range; the lab is born in the first, and the others are a router away\n"+
			"(default a=172.30.0.0/24; with both families a=172.30.0.0/24+fd00:172:30::/64)")
	cmd.Flags().
		StringVar(&f.cni, "cni", string(d.CNI), "network of pods: host-local, calico (VXLAN), calico-cross-subnet, flannel (VXLAN), cilium (VXLAN)")
	cmd.Flags().
		StringVar(&f.beside, "beside", "", "network that the cluster can be given later: cilium, with --cni flannel or host-local, or calico, with --cni host-local")
	cmd.Flags().StringVar(&f.kubernetes, "kubernetes", d.Kubernetes, "version of Kubernetes: "+strings.Join(lab.Releases(), ", "))
	cmd.Flags().StringVar(&f.gates, "feature-gates", "", "feature gates of the API servers and controller managers")
	cmd.Flags().StringVar(&f.served, "runtime-config", "", "APIs that API servers serve beside those they serve by default")
	cmd.Flags().BoolVar(&f.edge, "edge", false,
		"name server, load balancers, an ingress, and a machine outside to use them from")
	cmd.Flags().StringVar(&f.fabric, "fabric", "",
		"fabric to share with other labs, by name: the first makes it, and others plug into it, with networks of their own")
	cmd.Flags().StringVar(&f.registry, "registry", "",
		"host name, in "+lab.Zone+", of an image registry that nodes pull from with credentials; with --edge")
	cmd.Flags().StringSliceVar(&f.with, "with", nil, "what else runs in the cluster: "+strings.Join(addonNames(), ", "))
	cmd.Flags().BoolVar(&f.certManager, "cert-manager", false, "the same as --with cert-manager")
	cmd.Flags().BoolVar(&f.flux, "flux", false, "the same as --with flux")
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "also write the administrator's kubeconfig to this file")
	cmd.Flags().BoolVar(&f.keep, "keep-on-failure", false, "leave a lab that did not come up as it is")
}

// asClusterAPI is what --cluster-api stands for.
func (f *upFlags) asClusterAPI(cmd *cobra.Command) {
	f.installer = string(lab.ByClusterAPI)
	if !cmd.Flags().Changed("cni") {
		f.cni = string(lab.Calico)
	}
	if !cmd.Flags().Changed("control-planes") {
		f.controlPlanes = 3
	}
}

// firstModes are as many of a list of proxy modes as there are nodes.
func firstModes(modes string, nodes int) string {
	list := strings.Split(modes, ",")
	return strings.Join(list[:max(1, min(nodes, len(list)))], ",")
}

func (f upFlags) topology() (lab.Topology, error) {
	modes, err := lab.ParseProxyModes(f.proxy, f.nodes)
	if err != nil {
		return lab.Topology{}, err
	}
	if f.controlPlanes == 0 { // for lab.Up it stands for the default
		return lab.Topology{}, &lab.InvalidError{Field: "control-planes", Problem: "there must be one", Hint: "use 1 or 3"}
	}
	t := lab.Topology{Name: f.name, Nodes: modes, ControlPlanes: f.controlPlanes, CNI: lab.CNI(f.cni), Edge: f.edge, Fabric: f.fabric}
	t.Beside, t.ProxyPods, t.Installer = lab.CNI(f.beside), f.proxyPods, lab.Installer(f.installer)
	t.Registry, t.With = f.registry, f.addons()
	t.Kubernetes, t.FeatureGates, t.RuntimeConfig = f.kubernetes, f.gates, f.served
	err = f.ranges(&t)
	return t, err
}

// ranges are those that were asked for, and else those of the families.
func (f upFlags) ranges(t *lab.Topology) error {
	families, err := lab.ParseFamilies(f.families)
	if err != nil {
		return err
	}
	*t = t.InFamilies(families...)
	for _, r := range []struct {
		flag, value string
		to          [2]*netip.Prefix
	}{
		{"service-cidr", f.serviceCIDR, [2]*netip.Prefix{&t.ServiceCIDR, &t.SecondServiceCIDR}},
		{"pod-cidr", f.podCIDR, [2]*netip.Prefix{&t.PodCIDR, &t.SecondPodCIDR}},
	} {
		asked, err := parseRanges(r.flag, r.value, "10.96.0.0/16")
		if err != nil {
			return err
		}
		if len(asked) > 0 &&
			!slices.EqualFunc(asked, families, func(p netip.Prefix, f lab.Family) bool { return lab.FamilyOf(p.Addr()) == f }) {
			return &lab.InvalidError{
				Field: r.flag, Problem: fmt.Sprintf("%q is not of the families %s", r.value, f.families),
				Hint: "name one range for each of --ip-families, in that order",
			}
		}
		for i, p := range asked {
			*r.to[i] = p
		}
	}
	if len(f.networks) > 0 {
		t.Networks, err = parseNetworks(f.networks)
	}
	return err
}

// addons are those that were asked for, each once.
func (f upFlags) addons() []lab.Addon {
	var asked []lab.Addon
	for _, name := range f.with {
		asked = append(asked, lab.Addon(name))
	}
	if f.certManager {
		asked = append(asked, lab.CertManager)
	}
	if f.flux {
		asked = append(asked, lab.Flux)
	}
	slices.Sort(asked)
	return slices.Compact(asked)
}

func addonNames() []string {
	var names []string
	for _, a := range lab.AllAddons() {
		names = append(names, string(a))
	}
	return names
}

func parseNetworks(texts []string) ([]lab.Network, error) {
	var all []lab.Network
	for _, text := range texts {
		name, cidrs, _ := strings.Cut(text, "=")
		first, second, both := strings.Cut(cidrs, "+")
		n := lab.Network{Name: name}
		var err, errSecond error
		n.CIDR, err = netip.ParsePrefix(first)
		if both {
			n.Second, errSecond = netip.ParsePrefix(second)
		}
		if err != nil || errSecond != nil {
			return nil, &lab.InvalidError{
				Field: "networks", Problem: fmt.Sprintf("%q is not a network", text), Hint: "write it like a=172.30.0.0/24",
			}
		}
		all = append(all, n)
	}
	return all, nil
}

func (f upFlags) writeKubeconfig(l *lab.Lab) error {
	if f.kubeconfig == "" {
		return nil
	}
	data, err := os.ReadFile(l.Kubeconfig())
	if err != nil {
		return err
	}
	return os.WriteFile(f.kubeconfig, data, 0o600)
}

func newDown(s streams) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take a lab down and leave nothing behind",
		Long: `Take a lab down: no process, network, mount, control group or file of it is left, also when its start failed half
way or the process that made it was killed. It is no error if there is no such lab. The lab that made a fabric goes last of those that
share it.`,
		Example: "  replumb-lab down\n  replumb-lab down --name other",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			existed, err := lab.Down(cmd.Context(), name)
			switch {
			case err != nil:
				return err
			case existed:
				_, _ = fmt.Fprintf(s.err, "lab %q is down\n", name)
			default:
				_, _ = fmt.Fprintf(s.err, "there is no lab %q; nothing to do\n", name)
			}
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func newBuild(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "build [NAME...]",
		Short: "Build the components of a lab, unless they are built already",
		Long: `Build the named components of a lab, or all, into the cache, unless it has them, and print the name and folder of each.
"up" does the same by itself with those that its lab needs.`,
		Example: "  replumb-lab build\n  replumb-lab build kubernetes calico",
		Args:    args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, names []string) error {
			components, err := component.Named(names...)
			if err != nil {
				return usageError{err}
			}
			r := newReporter(s.err)
			b, err := component.NewBuilder(r.say)
			if err != nil {
				return err
			}
			b.Line = r.liner()
			dirs, err := b.Build(cmd.Context(), components...)
			if err != nil {
				return err
			}
			for _, c := range components {
				_, _ = fmt.Fprintf(s.out, "%s\t%s\n", c.Name, dirs[c.Name])
			}
			return nil
		},
	}
}
