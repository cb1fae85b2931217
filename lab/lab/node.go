package lab

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/lab/machine"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	sandboxImage     = "replumb.local/pause:lab"

	containerdConfigPath = "/etc/containerd/config.toml"
	cniConfigPath        = "/etc/cni/net.d/10-lab.conflist"
	kubeletConfigPath    = "/var/lib/kubelet/config.yaml"
	proxyConfigPath      = "/var/lib/kube-proxy/config.yaml"
	proxyKubeconfig      = "/etc/kubernetes/kube-proxy.conf"
	proxyUser            = "system:kube-proxy"
	controlPlaneProxy    = IPTables
	resolvConfPath       = "/etc/replumb-lab/resolv.conf"
)

// nodePrograms are what runs on a worker node.
func nodePrograms(t Topology, b binaries, m *Member) []machine.Program {
	programs := []machine.Program{
		{
			Name: "containerd",
			Argv: []string{filepath.Join(b.containerd, "containerd"), "--config", containerdConfigPath},
			// containerd looks for its shim in PATH.
			Env: []string{"PATH=" + b.containerd + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		{Name: "kubelet", Argv: []string{
			filepath.Join(b.kubernetes, "kubelet"),
			"--config=" + kubeletConfigPath,
			"--kubeconfig=/etc/kubernetes/kubelet.conf",
			"--hostname-override=" + m.Name,
			"--node-ip=" + commas(m.addresses()),
		}},
	}
	if m.Proxy == NoProxy || t.ProxyPods {
		return programs
	}
	return append(programs, kubeProxy(b))
}

func kubeProxy(b binaries) machine.Program {
	return machine.Program{Name: proxyProgram, Argv: []string{filepath.Join(b.kubernetes, "kube-proxy"), "--config=" + proxyConfigPath}}
}

// nodeConfig are the configuration files of those programs.
func nodeConfig(t Topology, b binaries, name, podCGroup string, mode ProxyMode, resolvConf []byte) (map[string][]byte, error) {
	kubelet, err := yaml.Marshal(kubeletConfig(t, podCGroup))
	if err != nil {
		return nil, err
	}
	config := map[string][]byte{
		kubeletConfigPath:    kubelet,
		containerdConfigPath: []byte(containerdConfig(t.CNI, b) + registryConfig(t)),
		// Pods with dnsPolicy Default get this, and cluster DNS asks it about names outside the cluster.
		resolvConfPath: resolvConf,
	}
	if mode == NoProxy || t.ProxyPods {
		return config, nil
	}
	config[proxyConfigPath], err = yaml.Marshal(proxyConfig(t, name, mode))
	return config, err
}

func kubeletConfig(t Topology, podCGroup string) *kubeletv1beta1.KubeletConfiguration {
	return &kubeletv1beta1.KubeletConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: kubeletv1beta1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		Authentication: kubeletv1beta1.KubeletAuthentication{
			Anonymous: kubeletv1beta1.KubeletAnonymousAuthentication{Enabled: ptr.To(false)},
			Webhook:   kubeletv1beta1.KubeletWebhookAuthentication{Enabled: ptr.To(true)},
			X509:      kubeletv1beta1.KubeletX509Authentication{ClientCAFile: pkiDir + "ca.crt"},
		},
		Authorization:            kubeletv1beta1.KubeletAuthorization{Mode: kubeletv1beta1.KubeletAuthorizationModeWebhook},
		TLSCertFile:              "/var/lib/kubelet/pki/kubelet.crt",
		TLSPrivateKeyFile:        "/var/lib/kubelet/pki/kubelet.key",
		ContainerRuntimeEndpoint: "unix://" + containerdSocket,
		ClusterDNS:               []string{t.dns().String()},
		ClusterDomain:            clusterDomain,
		ResolverConfig:           ptr.To(resolvConfPath),
		CgroupDriver:             "cgroupfs",
		CgroupRoot:               podCGroup,
		FailCgroupV1:             ptr.To(false),
		FailSwapOn:               ptr.To(false),
		// All nodes share one machine: its disk and memory are not any single node's to watch over.
		EnforceNodeAllocatable:      []string{},
		EvictionHard:                map[string]string{"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
		ImageGCHighThresholdPercent: ptr.To[int32](100),
	}
}

func proxyConfig(t Topology, name string, mode ProxyMode) *proxyv1alpha1.KubeProxyConfiguration {
	c := &proxyv1alpha1.KubeProxyConfiguration{
		TypeMeta:         metav1.TypeMeta{APIVersion: proxyv1alpha1.SchemeGroupVersion.String(), Kind: "KubeProxyConfiguration"},
		Mode:             proxyv1alpha1.ProxyMode(mode),
		ClusterCIDR:      commas(t.PodCIDRs()),
		BindAddress:      t.Families()[0].unspecified().String(),
		DetectLocalMode:  proxyv1alpha1.LocalMode("ClusterCIDR"),
		HostnameOverride: name,
		// The size of the connection table is the host's, not the network namespace's: left as it is.
		Conntrack: proxyv1alpha1.KubeProxyConntrackConfiguration{MaxPerCore: ptr.To[int32](0), Min: ptr.To[int32](0)},
	}
	if t.CNI.isCalico() { // so that pods of any pool are known for pods
		c.ClusterCIDR, c.DetectLocalMode = "", proxyv1alpha1.LocalMode("InterfaceNamePrefix")
		c.DetectLocal.InterfaceNamePrefix = "cali"
	}
	c.ClientConnection.Kubeconfig = proxyKubeconfig
	return c
}

func containerdConfig(cni CNI, b binaries) string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = %q

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
  # Lowering a process's OOM score takes a capability that the lab's machine may lack.
  restrict_oom_score_adj = true
  # A profile loaded into the kernel would outlive the lab.
  disable_apparmor = true

  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%s]
    conf_dir = %q
`, containerdSocket, sandboxImage, binDirs(cni, b), filepath.Dir(cniConfigPath))
}

// installedDir is where DaemonSets install CNI plugins.
const installedDir = "/opt/cni/bin"

// binDirs are where CNI plugins are found.
func binDirs(cni CNI, b binaries) string {
	dirs := []string{strconv.Quote(installedDir), strconv.Quote(b.cni)}
	if cni.isCalico() {
		dirs = append(dirs, strconv.Quote(b.calico))
	}
	return strings.Join(dirs, ", ")
}
