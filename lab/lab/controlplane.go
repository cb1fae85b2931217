package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/replumb/replumb/lab/machine"
)

const (
	etcdClientPort    = 2379
	etcdPeerPort      = 2380
	apiServerPort     = 6443
	clusterDomain     = "cluster.local"
	kubeletClientUser = "kube-apiserver-kubelet-client"
)

// etcd and where it has its data.
const (
	etcdProgram = "etcd"
	etcdDataDir = "/var/lib/etcd"
)

// The programs that know the range of Services, and the flag by which they do.
const (
	apiServerProgram         = "kube-apiserver"
	controllerManagerProgram = "kube-controller-manager"
	serviceCIDRFlag          = "--service-cluster-ip-range="
)

// shutdownDelay is how long an API server that is to end goes on serving after it has taken its address out of the
// "kubernetes" EndpointSlice: until every kube-proxy has heard of it, which takes them a second or two, or several when all
// machines share two busy processors.
const shutdownDelay = 10 * time.Second

// Once its port is closed, an API server answers what it has been asked and ends watches within watchGrace. Without any
// it would leave watches alone and wait a minute for them to end (k8s.io/apiserver, pkg/server/genericapiserver.go), as it
// does for logs that are followed; those are what is cut off after endGrace. --shutdown-send-retry-after would be quick
// as well, but answers requests with 429 that another server would have served.
const (
	watchGrace = 2 * time.Second
	endGrace   = 3 * time.Second
)

// controlPlanePrograms are the stock control plane, with the flags kubeadm gives it.
func (l ControlPlaneNodes) programs(m *Member) []machine.Program {
	bin := l.Binaries.kubernetes
	return []machine.Program{l.etcd(m), l.apiServer(m), controllerManager(l.Topology, bin), scheduler(bin)}
}

func (l ControlPlaneNodes) etcd(m *Member) machine.Program {
	var members []string
	for _, other := range l.with(ControlPlane) {
		members = append(members, other.Name+"="+other.PeerURL())
	}
	p := l.etcdMember(m)
	p.Argv = append(p.Argv, "--initial-cluster="+strings.Join(members, ","))
	return p
}

// proxies lead an API server that calls Services to their pods. Theirs take half a minute to start, as there is no Node of theirs to look at.
func (l ControlPlaneNodes) proxies() []machine.Program {
	if !l.Topology.callsServices() {
		return nil
	}
	return []machine.Program{kubeProxy(l.Binaries)}
}

// etcdMember does not say with whom it is to begin.
func (l ControlPlaneNodes) etcdMember(m *Member) machine.Program {
	const own = "https://127.0.0.1:2379"
	client := "https://" + netip.AddrPortFrom(m.Address, etcdClientPort).String()
	return machine.Program{Name: etcdProgram, Argv: []string{
		filepath.Join(l.Binaries.kubernetes, "etcd"),
		"--name=" + m.Name,
		"--data-dir=" + etcdDataDir,
		"--listen-client-urls=" + own + "," + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + m.PeerURL(),
		"--initial-advertise-peer-urls=" + m.PeerURL(),
		"--client-cert-auth=true",
		"--trusted-ca-file=" + pkiDir + "etcd/ca.crt",
		"--cert-file=" + pkiDir + "etcd/server.crt",
		"--key-file=" + pkiDir + "etcd/server.key",
		"--peer-client-cert-auth=true",
		"--peer-trusted-ca-file=" + pkiDir + "etcd/ca.crt",
		"--peer-cert-file=" + pkiDir + "etcd/peer.crt",
		"--peer-key-file=" + pkiDir + "etcd/peer.key",
		// A lab's data need not survive a power cut, and a shared disk's fsync would set the pace of everything.
		"--unsafe-no-fsync=true",
	}}
}

func (l ControlPlaneNodes) apiServer(m *Member) machine.Program {
	p := machine.Program{Name: apiServerProgram, Grace: endGrace, Argv: []string{
		filepath.Join(l.Binaries.kubernetes, "kube-apiserver"),
		"--advertise-address=" + m.Address.String(),
		fmt.Sprintf("--secure-port=%d", apiServerPort),
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--client-ca-file=" + pkiDir + "ca.crt",
		"--tls-cert-file=" + pkiDir + "apiserver.crt",
		"--tls-private-key-file=" + pkiDir + "apiserver.key",
		"--etcd-servers=https://127.0.0.1:2379",
		"--etcd-cafile=" + pkiDir + "etcd/ca.crt",
		"--etcd-certfile=" + pkiDir + "apiserver-etcd-client.crt",
		"--etcd-keyfile=" + pkiDir + "apiserver-etcd-client.key",
		"--kubelet-certificate-authority=" + pkiDir + "ca.crt",
		"--kubelet-client-certificate=" + pkiDir + "apiserver-kubelet-client.crt",
		"--kubelet-client-key=" + pkiDir + "apiserver-kubelet-client.key",
		"--kubelet-preferred-address-types=InternalIP",
		"--proxy-client-cert-file=" + pkiDir + "front-proxy-client.crt",
		"--proxy-client-key-file=" + pkiDir + "front-proxy-client.key",
		"--requestheader-client-ca-file=" + pkiDir + "front-proxy-ca.crt",
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-issuer=https://kubernetes.default.svc." + clusterDomain,
		"--service-account-key-file=" + pkiDir + "sa.crt",
		"--service-account-signing-key-file=" + pkiDir + "sa.key",
		serviceCIDRFlag + commas(l.Topology.ServiceCIDRs()),
		"--shutdown-watch-termination-grace-period=" + watchGrace.String(),
	}}
	p.Argv = append(p.Argv, slices.Concat(l.Topology.gates(), l.Topology.served())...)
	if l.Topology.ControlPlanes > 1 || l.Topology.Edge { // a single one for good has none to hand over to
		p.Grace += shutdownDelay
		p.Argv = append(p.Argv, "--shutdown-delay-duration="+shutdownDelay.String())
	}
	return p
}

func controllerManager(t Topology, bin string) machine.Program {
	const conf = "/etc/kubernetes/controller-manager.conf"
	return machine.Program{Name: controllerManagerProgram, Argv: append([]string{
		filepath.Join(bin, "kube-controller-manager"),
		"--bind-address=127.0.0.1",
		"--kubeconfig=" + conf,
		"--authentication-kubeconfig=" + conf,
		"--authorization-kubeconfig=" + conf,
		"--use-service-account-credentials=true",
		allocateFlag + strconv.FormatBool(!t.CNI.isCalico()), // Calico gives out ranges itself
		clusterCIDRFlag + commas(t.PodCIDRs()),
		serviceCIDRFlag + commas(t.ServiceCIDRs()),
		"--root-ca-file=" + pkiDir + "ca.crt",
		"--client-ca-file=" + pkiDir + "ca.crt",
		"--requestheader-client-ca-file=" + pkiDir + "front-proxy-ca.crt",
		"--cluster-signing-cert-file=" + pkiDir + "ca.crt",
		"--cluster-signing-key-file=" + pkiDir + "ca.key",
		"--service-account-private-key-file=" + pkiDir + "sa.key",
	}, t.gates()...)}
}

func scheduler(bin string) machine.Program {
	const conf = "/etc/kubernetes/scheduler.conf"
	return machine.Program{Name: "kube-scheduler", Argv: []string{
		filepath.Join(bin, "kube-scheduler"),
		"--bind-address=127.0.0.1",
		"--kubeconfig=" + conf,
		"--authentication-kubeconfig=" + conf,
		"--authorization-kubeconfig=" + conf,
	}}
}

// apiServers are where those of all control planes serve.
func (l ControlPlaneNodes) apiServers() []string {
	var all []string
	for _, m := range l.with(ControlPlane) {
		all = append(all, m.apiServer().String())
	}
	return all
}

// startControlPlane starts the machine of a control plane, whose API server is to be known by the addresses of services too.
func (l ControlPlaneNodes) start(
	ctx context.Context, fabric *namespace, creds *credentials, m *Member, services ...netip.Addr,
) error {
	listener, port, err := listen()
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	m.Port = port
	spec := l.nodeSpec(m)
	spec.Forward.To = []string{m.apiServer().String()}
	var content map[string][]byte
	if l.Topology.byKubeadm() {
		content, err = l.kubeadm().files(m, creds)
	} else {
		content, err = l.files(m, creds, services...)
	}
	if err != nil {
		return err
	}
	if err := l.machines().startOn(ctx, fabric, spec, listener, m, content); err != nil || !l.Topology.byKubeadm() || l.Topology.CNI != HostLocal {
		return err
	}
	return l.machines().masquerade(ctx, m)
}
