package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ProofSpec is how it is proven, while a migration goes on, that nothing is lost.
type ProofSpec struct {
	// agents says whether an agent of replumb runs on every node while the migration goes on. Default: Enabled, if there is an
	// image to run, which every release has.
	// +optional
	Agents AgentMode `json:"agents,omitempty"`

	// wait is how long an agent may take to report, at the beginning and later on, before the run stops and names its node.
	// Default: 2m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('10m')",message="is not longer than nothing and at most 10m; write a duration such as 30s"
	Wait *metav1.Duration `json:"wait,omitempty"`

	// rate is how many requests a second each of replumb's own probes sends, from every node. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Rate int `json:"rate,omitempty"`

	// probes are further targets, probed from every node.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Probes []ProbeSpec `json:"probes,omitempty"`

	// budget is how many failed requests a run tolerates. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1073741824
	Budget int `json:"budget,omitempty"`

	// lateBudget is how many late answers a run tolerates: those that took more than a second, or a second question to a name server, so that
	// something may have been lost on the way and sent again. They are no losses. Default: no limit; they are counted and shown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1073741824
	LateBudget *int `json:"lateBudget,omitempty"`

	// onLoss is what follows when more is lost, or late, than its budget allows: Pause ends the run, Rollback goes back to where the
	// migration began. Default: Pause.
	// +optional
	OnLoss LossPolicy `json:"onLoss,omitempty"`

	// soak is for how long no one must have used an old address before finish takes old addresses away. Default: 1m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Soak *metav1.Duration `json:"soak,omitempty"`
}

// AgentMode says whether agents run on the nodes.
//
// +kubebuilder:validation:Enum=Enabled;Disabled
type AgentMode string

// The modes of agents.
const (
	AgentsEnabled  AgentMode = "Enabled"
	AgentsDisabled AgentMode = "Disabled"
)

// LossPolicy is what follows from a loss.
//
// +kubebuilder:validation:Enum=Pause;Rollback
type LossPolicy string

// The loss policies.
const (
	OnLossPause    LossPolicy = "Pause"
	OnLossRollback LossPolicy = "Rollback"
)

// ProbeSpec is one target that agents send requests to.
//
// +kubebuilder:validation:XValidation:rule="!has(self.expectStatus) || self.kind == 'HTTP'",message="is for kind HTTP only; leave it out",fieldPath=".expectStatus"
// +kubebuilder:validation:XValidation:rule="!has(self.host) || self.kind == 'HTTP'",message="is for kind HTTP only; leave it out",fieldPath=".host"
// +kubebuilder:validation:XValidation:rule="self.kind != 'HTTP' || (isURL(self.address) && url(self.address).getScheme() in ['http', 'https'] && size(url(self.address).getHostname()) > 0)",message="is not a URL with scheme http or https; write it like http://shop.example:8080/health",fieldPath=".address"
// +kubebuilder:validation:XValidation:rule="self.kind != 'DNS' || self.address.matches('^[^:/ ]+$')",message="is not a name to look up; write it like shop.example",fieldPath=".address"
// +kubebuilder:validation:XValidation:rule="self.kind in ['HTTP', 'DNS'] || self.address.matches('^([[][^]/ ]+[]]|[^]:/ []+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="is not host:port; write it like 192.0.2.10:5432",fieldPath=".address"
type ProbeSpec struct {
	// name of the probe.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!(self in ['address', 'old-address', 'new-address', 'name', 'dns', 'stream', 'udp', 'single-old-address', 'single-new-address', 'single-name'])",message="is the name of one of replumb's own probes; give it another name"
	Name string `json:"name"`

	// kind is how the target is asked.
	Kind RequestKind `json:"kind"`

	// address is host:port; for kind HTTP a URL with scheme http or https; for kind DNS the name to look up.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Address string `json:"address"`

	// host that is asked for, where it is not the one in address: an ingress controller is called at its Service or load balancer, for a host
	// that it serves. Over https its certificate has to be for this host.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?(:[0-9]{1,5})?$`
	Host string `json:"host,omitempty"`

	// expectStatus is the HTTP status of a good answer. Default: 200.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=599
	ExpectStatus int `json:"expectStatus,omitempty"`

	// rate is how many requests a second every node sends. Default: proof.rate.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Rate int `json:"rate,omitempty"`

	// timeout is how long an answer may take. Default: 5s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('10m')",message="is not longer than nothing and at most 10m; write a duration such as 30s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// from says which network requests come from. Default: Both.
	// +optional
	From ProbeOrigin `json:"from,omitempty"`
}

// RequestKind is how a target is asked. TCP opens a connection, Stream keeps one and expects lines to be echoed, UDP expects a datagram
// to be echoed, HTTP gets a URL, DNS looks a name up; all but Stream start over each time.
//
// +kubebuilder:validation:Enum=TCP;HTTP;Stream;UDP;DNS
type RequestKind string

// The kinds of requests.
const (
	RequestTCP    RequestKind = "TCP"
	RequestHTTP   RequestKind = "HTTP"
	RequestStream RequestKind = "Stream"
	RequestUDP    RequestKind = "UDP"
	RequestDNS    RequestKind = "DNS"
)

// ProbeOrigin is the network that requests come from: that of the nodes, that of pods, or both.
//
// +kubebuilder:validation:Enum=Host;Pod;Both
type ProbeOrigin string

// The origins of requests.
const (
	FromHost ProbeOrigin = "Host"
	FromPod  ProbeOrigin = "Pod"
	FromBoth ProbeOrigin = "Both"
)

// The names of the probes that agents send unasked. Those of a Migration have others.
const (
	ProbeAddress    = "address"
	ProbeOldAddress = "old-address"
	ProbeNewAddress = "new-address"
	ProbeName       = "name"
	ProbeDNS        = "dns"
	ProbeStream     = "stream"
	ProbeUDP        = "udp"

	// Of the Service with one endpoint, from the network of pods.
	ProbeSingleOld  = "single-old-address"
	ProbeSingleNew  = "single-new-address"
	ProbeSingleName = "single-name"
)

// OwnProbes are all of these names.
func OwnProbes() []string {
	return []string{
		ProbeAddress, ProbeOldAddress, ProbeNewAddress, ProbeName, ProbeDNS, ProbeStream, ProbeUDP,
		ProbeSingleOld, ProbeSingleNew, ProbeSingleName,
	}
}

// NodeReport is what the agents of one node, by whose name it goes, have seen. They write it by server-side apply, each its own part.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=replumb
// +kubebuilder:metadata:annotations="replumb.dev/schema-revision=7"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Migration",type=string,JSONPath=`.metadata.labels.replumb\.dev/migration`
// +kubebuilder:printcolumn:name="Reported",type=date,JSONPath=`.status.agents[0].reportedAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status NodeReportStatus `json:"status,omitempty"`
}

// NodeReportList is a list of NodeReports.
//
// +kubebuilder:object:root=true
type NodeReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeReport `json:"items"`
}

// NodeReportStatus is what was seen on a node.
type NodeReportStatus struct {
	// agents are those that report: one in the network of the node, one in that of pods.
	// +optional
	// +listType=map
	// +listMapKey=origin
	Agents []AgentReport `json:"agents,omitempty"`

	// barriers are the latest that the node has passed. The agent in the node's network tells.
	// +optional
	// +listType=map
	// +listMapKey=sentinel
	// +kubebuilder:validation:MaxItems=32
	Barriers []BarrierReport `json:"barriers,omitempty"`

	// connects tells of Services that have moved: each is connected to once from the node's network.
	// +optional
	Connects *ConnectReport `json:"connects,omitempty"`

	// probes are what requests met with.
	// +optional
	// +listType=map
	// +listMapKey=name
	Probes []ProbeReport `json:"probes,omitempty"`

	// clients are those on this node that use old addresses, and those that have since Services left them. The agent in the node's network
	// tells.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Clients []OldAddressClient `json:"clients,omitempty"`

	// moreClients is how many of those that use them now had no room in clients.
	// +optional
	MoreClients int `json:"moreClients,omitempty"`

	// forgottenClients is how many of those that used them earlier had no room in clients.
	// +optional
	ForgottenClients int `json:"forgottenClients,omitempty"`

	// watched are the addresses that Services have left, and of which the node tells who uses them. The agent in the node's network tells.
	// +optional
	Watched *WatchedAddresses `json:"watched,omitempty"`

	// apiServers are those that the agent in the node's network knows, as it has seen them last. Only agents of a migration that moves
	// Services look.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=32
	APIServers []APIServerReport `json:"apiServers,omitempty"`
}

// WatchedAddresses are told in short: a node may watch ten thousand.
type WatchedAddresses struct {
	// count is how many there are.
	// +kubebuilder:validation:Minimum=0
	Count int `json:"count"`
	// digest of the addresses, which does not depend on their order.
	// +kubebuilder:validation:MaxLength=64
	Digest string `json:"digest"`
}

// APIServerReport is what one API server showed.
type APIServerReport struct {
	// address is where it was asked, as host:port.
	// +kubebuilder:validation:MaxLength=320
	Address string `json:"address"`
	// sans are the addresses in its certificate, which the cluster's authority has signed.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	SANs []string `json:"sans,omitempty"`
	// ranges are its --service-cluster-ip-range, the primary one first; none if it did not say.
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=64
	Ranges []string `json:"ranges,omitempty"`
	// seenAt is when it was asked, by the clock of the node.
	SeenAt metav1.MicroTime `json:"seenAt"`
	// problem is why its certificate is not known; RangesProblem is why its ranges are not.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Problem string `json:"problem,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RangesProblem string `json:"rangesProblem,omitempty"`
}

// AgentReport is one agent's word that it is alive.
type AgentReport struct {
	// origin is the network that the agent is in: Host or Pod.
	Origin ProbeOrigin `json:"origin"`
	// instance is the UID of the pod: a new one counts from zero.
	Instance string `json:"instance"`
	// version of replumb.
	// +optional
	Version string `json:"version,omitempty"`
	// reportedAt is when it last reported, by the clock of its node.
	ReportedAt metav1.MicroTime `json:"reportedAt"`
	// sequence counts the reports of the instance.
	Sequence int64 `json:"sequence"`
	// problem is what keeps the agent from seeing what it should; empty if nothing does.
	// +optional
	Problem string `json:"problem,omitempty"`
}

// BarrierReport says that the kube-proxy of the node has programmed everything that was there before a sentinel.
type BarrierReport struct {
	// sentinel is the UID of the sentinel Service.
	Sentinel string `json:"sentinel"`
	// passedAt is when the node's kube-proxy reported the sentinel's endpoint, by the clock of the node.
	PassedAt metav1.MicroTime `json:"passedAt"`
}

// ConnectReport counts connections to Services that have moved.
type ConnectReport struct {
	// instance is the UID of the agent's pod.
	Instance string `json:"instance"`
	// connected is how many moved Services were connected to since their latest move, whatever came of it. Services without a TCP port,
	// and those that could not be connected to before they moved, count without a connection.
	Connected int `json:"connected"`
	// failed are those that could be connected to before they moved, and not after.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Failed []FailedConnect `json:"failed,omitempty"`
	// moreFailed is how many had no room in failed.
	// +optional
	MoreFailed int `json:"moreFailed,omitempty"`
}

// FailedConnect is a connection that was not made.
type FailedConnect struct {
	// service as namespace/name, and the address, as host:port, that did not answer.
	Service string           `json:"service"`
	Address string           `json:"address"`
	At      metav1.MicroTime `json:"at"`
	Error   string           `json:"error"`
}

// ProbeReport is what one agent's requests to one target met with.
type ProbeReport struct {
	// name is ORIGIN/PROBE, such as host/old-address or pod/shop-by-name.
	Name string `json:"name"`
	// origin is the network that requests come from: Host or Pod.
	Origin ProbeOrigin `json:"origin"`
	// kind is how the target is asked.
	Kind RequestKind `json:"kind"`
	// address is whom requests go to.
	Address string `json:"address"`
	// instance is the UID of the agent's pod: all requests count from when it began.
	Instance string `json:"instance"`
	// since is when the first request was due. sent and failed count those that are over.
	Since  metav1.MicroTime `json:"since"`
	Sent   int64            `json:"sent"`
	Failed int64            `json:"failed"`
	// late is how many of those that were answered took more than a second, or a second question to a name server.
	// +optional
	Late int64 `json:"late,omitempty"`
	// notMeasured counts further requests that say nothing of the target: the agent could not send them in time, had no room for them, or stood
	// still while their answer was due.
	// +optional
	NotMeasured int64 `json:"notMeasured,omitempty"`
	// recent are the latest stretches of time, oldest first, without holes: from one report to the next.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Recent []ProbeWindow `json:"recent,omitempty"`
	// losses are the latest stretches in which requests failed.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Losses []LossWindow `json:"losses,omitempty"`
}

// ProbeWindow is a stretch of whole seconds.
type ProbeWindow struct {
	// start and end in seconds since the Unix epoch, by the clock of the node.
	Start int64 `json:"start"`
	End   int64 `json:"end"`
	// sent, failed, late and notMeasured are requests that were due in it.
	Sent        int `json:"sent"`
	Failed      int `json:"failed,omitempty"`
	Late        int `json:"late,omitempty"`
	NotMeasured int `json:"notMeasured,omitempty"`
	// latency is an HdrHistogram (V2, compressed, base64) of the successes, in microseconds from the scheduled time.
	// +optional
	Latency string `json:"latency,omitempty"`
}

// LossWindow is a stretch in which requests failed.
type LossWindow struct {
	// start and end are the scheduled times of the first and last failed request, by the clock of the node.
	Start metav1.MicroTime `json:"start"`
	End   metav1.MicroTime `json:"end"`
	// failed is how many requests did.
	Failed int `json:"failed"`
	// error of the first.
	Error string `json:"error"`
}

// OldAddressClient is who uses an address that a Service has left.
type OldAddressClient struct {
	// address as host:port, and its protocol (TCP, UDP or SCTP).
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	// service as namespace/name, which had the address.
	Service string `json:"service"`
	// pod as namespace/name, if the client is one with an address of its own; else it is a process, or a pod with hostNetwork, of the
	// node.
	// +optional
	Pod string `json:"pod,omitempty"`
	// source is the client's address.
	Source string `json:"source"`
	// lastSeen is when a packet last went to the address, by the clock of the node.
	LastSeen metav1.MicroTime `json:"lastSeen"`
	// open is how many connections are open; for UDP, how many are tracked.
	Open int `json:"open"`
	// gone says that the pod is not there any more, by the API server.
	// +optional
	Gone bool `json:"gone,omitempty"`
	// workload that the pod belongs to, as kind and namespace/name. Its pods are one client to firstSeen and longestGap.
	// +optional
	Workload string `json:"workload,omitempty"`
	// firstSeen is when the client was first seen after resolvers had forgotten the address, by the clock of the node.
	// +optional
	FirstSeen *metav1.MicroTime `json:"firstSeen,omitempty"`
	// longestGap is the longest time that was seen between two uses.
	// +optional
	LongestGap *metav1.Duration `json:"longestGap,omitempty"`
}

// ProofStatus is what the agents have seen of a migration in all.
type ProofStatus struct {
	// nodes is how many nodes have agents that report.
	// +optional
	Nodes int `json:"nodes,omitempty"`
	// silent are nodes without one, and those whose agents could not measure more than one in a thousand requests, with the reason.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Silent []string `json:"silent,omitempty"`
	// sent and failed count the requests of all probes in the latest run.
	// +optional
	Sent int64 `json:"sent,omitempty"`
	// +optional
	Failed int64 `json:"failed,omitempty"`
	// late answers are no losses: they took more than a second, or a second question to a name server.
	// +optional
	Late int64 `json:"late,omitempty"`
	// notMeasured counts further requests, of which nothing is known: an agent could not send them in time, or stood still.
	// +optional
	NotMeasured int64 `json:"notMeasured,omitempty"`
	// losses are the latest ones.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Losses []Loss `json:"losses,omitempty"`
}

// Loss is requests that a probe lost on one node.
type Loss struct {
	// node and probe that saw it; the probe is a moved Service, as namespace/name, if it was only connected to.
	Node  string `json:"node"`
	Probe string `json:"probe"`
	// address is whom requests went to.
	Address string `json:"address"`

	LossWindow `json:",inline"`
}
