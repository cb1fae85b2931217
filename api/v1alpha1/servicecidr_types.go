package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServiceCIDRSpec is the job of moving the Service range.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.to) || (has(self.to) && self.to == oldSelf.to)",message="cannot be changed once the migration is recorded; roll it back and give the new one another name",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.from) || (has(self.from) && self.from == oldSelf.from)",message="cannot be changed once the migration is recorded; roll it back and give the new one another name",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="(has(self.to) && !self.to.all(c, isCIDR(c))) || !has(self.to) || self.to.all(a, cidr(a).ip().family() == cidr(self.to[0]).ip().family())",message="mixes IPv4 and IPv6; move one family at a time",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="(has(self.to) && !self.to.all(c, isCIDR(c))) || !has(self.to) || self.to.all(a, self.to.exists_one(b, (cidr(a).containsCIDR(cidr(b)) || cidr(b).containsCIDR(cidr(a)))))",message="has ranges that overlap each other; name ranges that do not overlap",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="(has(self.to) && !self.to.all(c, isCIDR(c))) || (has(self.from) && !self.from.all(c, isCIDR(c))) || !has(self.to) || !has(self.from) || self.to.all(a, self.from.all(b, !(cidr(a).containsCIDR(cidr(b)) || cidr(b).containsCIDR(cidr(a)))))",message="overlaps a range in spec.serviceCIDR.from; choose a target outside the range that is to be emptied",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="(has(self.to) && !self.to.all(c, isCIDR(c))) || (has(self.from) && !self.from.all(c, isCIDR(c))) || !has(self.to) || !has(self.from) || size(self.to) == 0 || self.from.all(b, cidr(b).ip().family() == cidr(self.to[0]).ip().family())",message="is not of the family of the target; move one family at a time",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="self.mode == 'Retire' || (has(self.to) && size(self.to) > 0)",message="is empty; name the target range, such as 172.24.0.0/16",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Retire' || (has(self.from) && size(self.from) == 1)",message="must name one range in mode Retire; name the range to empty and delete",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Extend' || !has(self.from) || size(self.from) == 0",message="contradicts mode Extend, which empties nothing; remove it, or set mode: Move",fieldPath=".from"
//
// +kubebuilder:validation:XValidation:rule="has(self.etcd) || !has(self.strategies) || !((has(self.strategies.clusterIP) && self.strategies.clusterIP == 'Etcd') || (has(self.strategies.nodePort) && self.strategies.nodePort == 'Etcd') || (has(self.strategies.loadBalancer) && self.strategies.loadBalancer == 'Etcd') || (has(self.strategies.other) && self.strategies.other == 'Etcd'))",message="is empty, and a strategy is Etcd; say how etcd is reached",fieldPath=".etcd"
type ServiceCIDRSpec struct {
	// mode Move empties and retires ranges. Extend only adds the target. Retire empties and deletes one range whose
	// Services go to the other ranges. Default: Move.
	// +optional
	// +kubebuilder:default=Move
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Mode ServiceCIDRMode `json:"mode,omitempty"`

	// to is the target range. Mode Retire defaults it to every other ready ServiceCIDR.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	To []string `json:"to,omitempty"`

	// from is what to empty. Default: every ready ServiceCIDR that is not the target.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	From []string `json:"from,omitempty"`

	// strategies are how Services move, by their kind. The annotation replumb.dev/strategy of a Service goes before: pin, hop or etcd.
	// +optional
	// +kubebuilder:default={}
	Strategies StrategiesSpec `json:"strategies,omitempty"`

	// etcd is how the etcd of the API servers is reached. With it Services can be moved that no API can move: by strategy Etcd.
	// +optional
	Etcd *StoreSpec `json:"etcd,omitempty"`

	// overlap is where a Service that has moved keeps its old address until finish: on itself, as an externalIP or as the address of a
	// load balancer, or on a bridge beside it. Auto chooses for each Service, and plan says why. With strategy Hop a
	// Service can be on itself as an externalIP alone.
	// +optional
	// +kubebuilder:default=Auto
	Overlap OverlapForm `json:"overlap,omitempty"`

	// bridge is how bridges are kept answering at old addresses.
	// +optional
	// +kubebuilder:default=Auto
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Bridge BridgeForm `json:"bridge,omitempty"`

	// bridgeLabels are put on bridges, which stand in the namespaces of their Services, for policies that ask for some. Bridges that are
	// there get those that are added later, and keep those that are taken out.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	BridgeLabels map[string]string `json:"bridgeLabels,omitempty"`

	// clusterDomain is the DNS domain of the cluster. Default: cluster.local.
	// +optional
	// +kubebuilder:default=cluster.local
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	ClusterDomain string `json:"clusterDomain,omitempty"`

	// drain is how long old addresses answer after the last move before finish or rollback may take them away. It
	// covers what clients and DNS caches remember.
	// +optional
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Drain *metav1.Duration `json:"drain,omitempty"`

	// barrier is how it is proven that every node knows a batch's bridges.
	// +optional
	// +kubebuilder:default={}
	Barrier BarrierSpec `json:"barrier,omitempty"`

	// follower says whether a Deployment of replumb keeps bridges in step with their Services from the first bridge to the last, between
	// commands as well: copies of the endpoints of Services without selector, kubernetes first of all, selectors and ports. It runs
	// the image of agents. Default: Enabled, if there is an image to run, which every release has.
	// +optional
	Follower FollowerMode `json:"follower,omitempty"`

	// clusterServices says whether the cluster's own Services (kube-dns and whatever the kubelets' clusterDNS names, and
	// kubernetes) move too. As long as they stay, the default range cannot be retired. Default: Move.
	// +optional
	// +kubebuilder:default=Move
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	ClusterServices ClusterServicesPolicy `json:"clusterServices,omitempty"`

	// networks are ranges outside the cluster that its pods and nodes reach, such as VPNs and offices. The target must
	// not overlap them.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	Networks []string `json:"networks,omitempty"`

	// refresh is how pods are dealt with that carry old addresses in their environment or resolv.conf.
	// +optional
	// +kubebuilder:default={}
	Refresh RefreshSpec `json:"refresh,omitempty"`

	// apiServers are host:port of every API server, as reached from where replumb runs. Default: the endpoints of the
	// kubernetes Service.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([[][^]/ ]+[]]|[^]:/ []+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="is not host:port; write it such as 192.0.2.10:6443"
	APIServers []string `json:"apiServers,omitempty"`

	// gates says who does what gates wait for. Manual leaves it to people. With Kubeadm, pods of replumb's own change what kubeadm has
	// written on each node, one node after the other, and its ConfigMaps: they are root there, and on control planes that is the whole
	// cluster. A gate with an action calls the action. Default: Manual.
	// +optional
	Gates GatesMode `json:"gates,omitempty"`

	// manualGates are left to people with gates: Kubeadm as well.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	ManualGates []GateName `json:"manualGates,omitempty"`

	// actions do what gates wait for. A gate with an action calls it once in a run, and goes on when it sees for itself that all is as it
	// should be; what the action says does not count. One without waits for people. An action has up to 30m, unless it says.
	// +optional
	Actions *GateActions `json:"actions,omitempty"`

	// gateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// StrategiesSpec is how Services move, by their kind.
type StrategiesSpec struct {
	// clusterIP Services: Hop, Etcd or Pin. Default: Hop.
	// +optional
	// +kubebuilder:default=Hop
	ClusterIP Strategy `json:"clusterIP,omitempty"`

	// nodePort Services: Hop, which for a moment takes the node ports away; Etcd, which leaves them alone; or Pin. Default: Hop.
	// +optional
	// +kubebuilder:default=Hop
	NodePort Strategy `json:"nodePort,omitempty"`

	// loadBalancer Services: Pin or Etcd. A hop would have the load balancer deleted. Default: Pin.
	// +optional
	// +kubebuilder:default=Pin
	// +kubebuilder:validation:XValidation:rule="self != 'Hop'",message="cannot be Hop: the load balancers would be deleted; set Pin or Etcd"
	LoadBalancer Strategy `json:"loadBalancer,omitempty"`

	// other are Services that cannot hop without losing something: those with externalIPs, or with internalTrafficPolicy Local. Pin or Etcd.
	// Default: Etcd, if spec.serviceCIDR.etcd is set; else such Services block the migration until each is pinned.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self != 'Hop'",message="cannot be Hop: such Services would lose something; set Pin or Etcd"
	Other Strategy `json:"other,omitempty"`
}

// Strategy is how a Service gets to another address, or that it does not.
//
// +kubebuilder:validation:Enum=Hop;Etcd;Pin
type Strategy string

// The strategies.
const (
	// StrategyOfHop has the Service give up its type and take it on again, by two patches.
	StrategyOfHop Strategy = "Hop"
	// StrategyOfEtcd changes nothing but the address, where API servers keep the Service.
	StrategyOfEtcd Strategy = "Etcd"
	// StrategyOfPin keeps the Service at its address, and the address legitimate.
	StrategyOfPin Strategy = "Pin"
)

// StoreSpec is how the etcd of API servers is reached: from where replumb runs, with files on that machine or with a Secret, or by source:
// Kubeadm through a pod on a control plane. A client's credentials of etcd give all of the cluster.
//
// +kubebuilder:validation:XValidation:rule="!has(self.source) || !(has(self.endpoints) || has(self.secret) || has(self.caFile) || has(self.certFile) || has(self.keyFile))",message="is set, and endpoints, files or a Secret are named as well; with source: Kubeadm name none of them",fieldPath=".source"
// +kubebuilder:validation:XValidation:rule="has(self.source) || has(self.endpoints)",message="is empty; name client URLs of etcd, or on a cluster that kubeadm made set source: Kubeadm",fieldPath=".endpoints"
// +kubebuilder:validation:XValidation:rule="!(has(self.secret) && (has(self.caFile) || has(self.certFile) || has(self.keyFile)))",message="is set, and files are named as well; name either the Secret or the files",fieldPath=".secret"
// +kubebuilder:validation:XValidation:rule="has(self.secret) || (has(self.caFile) && has(self.certFile) && has(self.keyFile)) || !has(self.endpoints) || self.endpoints.all(e, e.startsWith('http://'))",message="is empty; name caFile, certFile and keyFile, or a secret",fieldPath=".caFile"
type StoreSpec struct {
	// source says who has the credentials. With Kubeadm it is control planes that kubeadm made, with etcd on them. For as long as a run needs
	// it, a pod on one of them connects to the etcd of its node with the certificate of its API server, which stays there.
	// Neither endpoints nor credentials are named then. Default: files or a Secret.
	// +optional
	Source StoreSource `json:"source,omitempty"`

	// endpoints are client URLs. One that answers is enough.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="isURL(self) && size(url(self).getHost()) > 0 && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['127.0.0.1', '::1', 'localhost']))",message="is no client URL; write https://10.0.0.1:2379"
	Endpoints []string `json:"endpoints,omitempty"`

	// prefix is what API servers are given as --etcd-prefix. Default: /registry.
	// +optional
	// +kubebuilder:default=/registry
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/`
	Prefix string `json:"prefix,omitempty"`

	// caFile, certFile and keyFile are of a client of etcd, on the machine where replumb runs; with kubeadm etcd/ca.crt and
	// apiserver-etcd-client.crt and .key in /etc/kubernetes/pki.
	// +optional
	// +kubebuilder:validation:MinLength=1
	CAFile string `json:"caFile,omitempty"`
	// +optional
	// +kubebuilder:validation:MinLength=1
	CertFile string `json:"certFile,omitempty"`
	// +optional
	// +kubebuilder:validation:MinLength=1
	KeyFile string `json:"keyFile,omitempty"`

	// secret is the name of a Secret in the namespace replumb-system that has them as ca.crt, tls.crt and tls.key: for the operator, which has
	// no files.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Secret string `json:"secret,omitempty"`
}

// StoreSource is who has a client's credentials of etcd.
//
// +kubebuilder:validation:Enum=Kubeadm
type StoreSource string

// SourceKubeadm has control planes that kubeadm made use the certificates of their API servers.
const SourceKubeadm StoreSource = "Kubeadm"

// GateActions are what gates call. Each has to stand being called again.
type GateActions struct {
	// certificates has every API server serve a certificate that names the new address of the Service kubernetes beside the old one.
	// +optional
	Certificates *Action `json:"certificates,omitempty"`

	// kubelets has every kubelet name another address as cluster DNS.
	// +optional
	Kubelets *Action `json:"kubelets,omitempty"`

	// apiServers gives every API server and controller manager another --service-cluster-ip-range.
	// +optional
	APIServers *Action `json:"apiServers,omitempty"`
}

// GatesMode is who does what gates wait for.
//
// +kubebuilder:validation:Enum=Manual;Kubeadm
type GatesMode string

// The modes of gates.
const (
	// GatesManual wait for people.
	GatesManual GatesMode = "Manual"
	// GatesKubeadm are passed by pods that change what kubeadm has written on nodes.
	GatesKubeadm GatesMode = "Kubeadm"
)

// GateName is a gate of a move of Services, by the name of its action.
//
// +kubebuilder:validation:Enum=certificates;kubelets;apiServers
type GateName string

// The gates of a move of Services.
const (
	GateCertificates GateName = "certificates"
	GateKubelets     GateName = "kubelets"
	GateAPIServers   GateName = "apiServers"
)

// ServiceCIDRMode is what a migration does to ranges.
//
// +kubebuilder:validation:Enum=Move;Extend;Retire
type ServiceCIDRMode string

// The modes.
const (
	ModeMove   ServiceCIDRMode = "Move"
	ModeExtend ServiceCIDRMode = "Extend"
	ModeRetire ServiceCIDRMode = "Retire"
)

// FollowerMode says whether bridges are kept in step between commands.
//
// +kubebuilder:validation:Enum=Enabled;Disabled
type FollowerMode string

// The modes of the follower.
const (
	FollowerEnabled  FollowerMode = "Enabled"
	FollowerDisabled FollowerMode = "Disabled"
)

// ClusterServicesPolicy says whether the cluster's own Services move.
//
// +kubebuilder:validation:Enum=Move;Stay
type ClusterServicesPolicy string

// The policies for the cluster's own Services.
const (
	ClusterServicesMove ClusterServicesPolicy = "Move"
	ClusterServicesStay ClusterServicesPolicy = "Stay"
)

// RefreshSpec is how pods get rid of old addresses.
type RefreshSpec struct {
	// mode Restart restarts the owners of such pods; Report only names them. Default: Restart.
	// +optional
	// +kubebuilder:default=Restart
	Mode RefreshMode `json:"mode,omitempty"`

	// parallel is how many workloads restart at once. Default: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=2
	Parallel int `json:"parallel,omitempty"`

	// timeout is how long one workload may take to be ready again. Default: 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// barePods says what to do with pods that no rollout restarts: those without an owner, of Jobs, and of owners
	// replumb does not know. Default: Report.
	// +optional
	// +kubebuilder:default=Report
	BarePods BarePodsPolicy `json:"barePods,omitempty"`

	// leaveFirst says which Deployments are restarted pod by pod, each of which leaves its Services before it ends, so that no client
	// loses anything. UDP: those that a Service with a UDP port leads to, such as CoreDNS. All: those that any Service leads to, which takes
	// longer. None: all are restarted by rollout. Where a pod cannot leave first, its Deployment is restarted by rollout. Default: UDP.
	// +optional
	// +kubebuilder:default=UDP
	LeaveFirst LeaveFirstPolicy `json:"leaveFirst,omitempty"`
}

// LeaveFirstPolicy says which Deployments have pods that leave their Services before they end.
//
// +kubebuilder:validation:Enum=UDP;All;None
type LeaveFirstPolicy string

// The policies for pods that leave their Services.
const (
	LeaveFirstUDP  LeaveFirstPolicy = "UDP"
	LeaveFirstAll  LeaveFirstPolicy = "All"
	LeaveFirstNone LeaveFirstPolicy = "None"
)

// RefreshMode is what refresh does.
//
// +kubebuilder:validation:Enum=Restart;Report
type RefreshMode string

// The refresh modes.
const (
	RefreshRestart RefreshMode = "Restart"
	RefreshReport  RefreshMode = "Report"
)

// BarePodsPolicy is what refresh does with pods that no rollout restarts.
//
// +kubebuilder:validation:Enum=Report;Evict
type BarePodsPolicy string

// The policies for such pods.
const (
	BarePodsReport BarePodsPolicy = "Report"
	BarePodsEvict  BarePodsPolicy = "Evict"
)

// OverlapForm is where the other address of a Service answers during the overlap.
//
// +kubebuilder:validation:Enum=Auto;ExternalIP;LoadBalancer;Bridge
type OverlapForm string

// The forms of overlap.
const (
	OverlapAuto OverlapForm = "Auto"
	// OverlapExternalIP has the Service keep it as one of its externalIPs; it stays of its type. For kube-proxy.
	OverlapExternalIP OverlapForm = "ExternalIP"
	// OverlapLoadBalancer has the Service keep it as the address of a load balancer of class replumb.dev/bridge. For Cilium in the
	// place of kube-proxy.
	OverlapLoadBalancer OverlapForm = "LoadBalancer"
	// OverlapBridge has another Service keep it.
	OverlapBridge OverlapForm = "Bridge"
)

// BridgeForm is a way of keeping an address answering.
//
// +kubebuilder:validation:Enum=Auto;ExternalIPs;LoadBalancer
type BridgeForm string

// The bridge forms.
const (
	BridgeAuto         BridgeForm = "Auto"
	BridgeExternalIPs  BridgeForm = "ExternalIPs"
	BridgeLoadBalancer BridgeForm = "LoadBalancer"
)

// BarrierSpec is how a barrier is passed.
type BarrierSpec struct {
	// mode Agent has the agent of every node ask its kube-proxy, HealthCheck asks through the API server. Wait only lets time pass, and
	// proves nothing. Default: Agent where agents run, else HealthCheck.
	// +optional
	Mode BarrierMode `json:"mode,omitempty"`

	// wait is the time that mode Wait lets pass. Mode HealthCheck gives up after it, but not before a minute.
	// +optional
	// +kubebuilder:default="10s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Wait *metav1.Duration `json:"wait,omitempty"`
}

// BarrierMode is a way of passing a barrier.
//
// +kubebuilder:validation:Enum=HealthCheck;Agent;Wait
type BarrierMode string

// The barrier modes.
const (
	BarrierHealthCheck BarrierMode = "HealthCheck"
	BarrierAgent       BarrierMode = "Agent"
	BarrierWait        BarrierMode = "Wait"
)
