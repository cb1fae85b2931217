package agentset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/verify/memtrim"
)

const (
	httpPort, echoPort, echoUDPPort = 8080, 8081, 8082
	// lameDuck is for how many seconds a terminating pod goes on answering, while kube-proxies
	// learn that it ends. rolledLameDuck is longer: during a migration a loss that no client would
	// have is worse than waiting.
	lameDuck, rolledLameDuck = 5, 15
	// echoDrain is for how many more the program answers when it is told to end (echoserver.Drain).
	echoDrain = 5
)

// keepsOut selects the nodes without an agent in a network: foreign ones, and those whose pods are
// leaving. A label says so, as agents tolerate every taint.
func keepsOut(o v1alpha1.ProbeOrigin) []corev1.NodeSelectorRequirement {
	if o == v1alpha1.FromPod {
		return append(workload.Foreign(), workload.Not(v1alpha1.LabelAgents, v1alpha1.HostAgent, v1alpha1.NoAgents))
	}
	return append(workload.Foreign(), workload.Not(v1alpha1.LabelAgents, v1alpha1.NoAgents))
}

func kept(n *corev1.Node, out []corev1.NodeSelectorRequirement) bool {
	return slices.ContainsFunc(out, func(r corev1.NodeSelectorRequirement) bool { return slices.Contains(r.Values, n.Labels[r.Key]) })
}

// Origins are the networks that a node is to have agents in.
func Origins(n *corev1.Node) []v1alpha1.ProbeOrigin {
	var all []v1alpha1.ProbeOrigin
	for _, o := range []v1alpha1.ProbeOrigin{v1alpha1.FromHost, v1alpha1.FromPod} {
		if !kept(n, keepsOut(o)) {
			all = append(all, o)
		}
	}
	return all
}

// Apart reports whether the pods of a node are leaving it, or have left: its agents no longer stand
// for clients.
func Apart(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelAgents] != "" }

// objects builds what Install applies.
type objects struct{ *Set }

func (s objects) meta(namespace, name, role string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelMigration: s.Migration, v1alpha1.LabelRole: role},
	}
}

// args name API servers by their own addresses: an agent must not depend on the Services that it
// judges.
func (s objects) args(origin string, servers []string, more ...string) []string {
	all := []string{
		"agent", "--origin=" + origin, "--migration=" + s.Migration, workload.APIFlag + strings.Join(servers, ","),
		"--interval=" + cmp.Or(s.Interval, defaultInterval).String(),
	}
	if s.Domain != "" {
		all = append(all, "--domain="+s.Domain)
	}
	var ranges []string
	for _, r := range s.Ranges {
		ranges = append(ranges, r.String())
	}
	if len(ranges) > 0 {
		all = append(all, "--ranges="+strings.Join(ranges, ","))
	}
	return append(all, more...)
}

// hostSet runs the agent in the network of nodes. Reading connection tracking takes NET_ADMIN,
// which only root has, as containers have no ambient capabilities; without Services it is not read.
func (s objects) hostSet(servers []string) ([]client.Object, error) {
	pod := s.pod(s.args("host", servers), v1alpha1.FromHost)
	if len(s.Ranges) > 0 {
		c := pod.Containers[0].SecurityContext
		c.RunAsUser, c.RunAsGroup, c.RunAsNonRoot = ptr.To[int64](0), ptr.To[int64](0), ptr.To(false)
		c.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
	}
	pod.HostNetwork, pod.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
	return s.daemonSet(HostSet, v1alpha1.RoleAgent, pod, allAtOnce())
}

func (s objects) podSet(servers []string) ([]client.Object, error) {
	pod := s.pod(s.args("pod", servers, "--serve"), v1alpha1.FromPod)
	update, duck := allAtOnce(), int64(lameDuck)
	if s.Roll {
		update, duck = newOnesFirst(), rolledLameDuck
	}
	serves(&pod, duck)
	return s.daemonSet(PodSet, v1alpha1.RoleProbe, pod, update)
}

// serves makes a pod one that others call, and that answers for so many seconds once it is to end.
func serves(pod *corev1.PodSpec, duck int64) {
	c := &pod.Containers[0]
	c.Ports = []corev1.ContainerPort{
		{Name: "http", ContainerPort: httpPort, Protocol: corev1.ProtocolTCP},
		{Name: "echo", ContainerPort: echoPort, Protocol: corev1.ProtocolTCP},
		{Name: "echo-udp", ContainerPort: echoUDPPort, Protocol: corev1.ProtocolUDP},
	}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("http")}},
		PeriodSeconds: 2, TimeoutSeconds: 2, FailureThreshold: 5,
	}
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: duck}}}
	// Then it answers for 5 s more, closes kept connections, and has time to spare.
	pod.TerminationGracePeriodSeconds = ptr.To(duck + 15)
}

// allAtOnce replaces agents quickly, outside of a migration that restarts pods.
func allAtOnce() *appsv1.RollingUpdateDaemonSet {
	return &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromString("100%"))}
}

// newOnesFirst replaces them with no fewer endpoints at any time.
func newOnesFirst() *appsv1.RollingUpdateDaemonSet {
	return &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromString("25%"))}
}

// pod takes less than it asks for. With a smaller share, an agent on a busy node waits for a
// processor until requests are late: losses of its own.
func (s objects) pod(args []string, o v1alpha1.ProbeOrigin) corev1.PodSpec {
	env := []corev1.EnvVar{
		workload.FromField("NODE_NAME", "spec.nodeName"), workload.FromField("NODE_IPS", "status.hostIPs"),
		workload.FromField("POD_IP", "status.podIP"), workload.FromField("POD_UID", "metadata.uid"),
	}
	for _, v := range memtrim.Settings() {
		env = append(env, corev1.EnvVar{Name: v.Name, Value: v.Value})
	}
	pod := workload.PodOptions{
		Account: accountOf(o), Image: s.Image, Args: args, Env: env, Priority: "system-node-critical",
		CPU: "50m", Memory: "32Mi", MemoryLimit: "256Mi", Grace: 5,
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Affinity:    workload.OnNodes(keepsOut(o)),
	}.Spec()
	if s.Roll {
		pod.DNSConfig = askAgain()
	}
	return pod
}

// askAgain has resolvers repeat a datagram after one second in place of five: kube-proxy learns
// late of a name server that has ended, and a probe has five seconds. It shows as latency.
func askAgain() *corev1.PodDNSConfig {
	return &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{
		{Name: "timeout", Value: ptr.To("1")}, {Name: "attempts", Value: ptr.To("4")},
	}}
}

// daemonSet selects pods by their role alone: a selector cannot be changed, and the next migration
// takes over.
func (s objects) daemonSet(name, role string, pod corev1.PodSpec, update *appsv1.RollingUpdateDaemonSet) ([]client.Object, error) {
	m := s.meta(v1alpha1.SystemNamespace, name, role)
	pods, err := workload.Template(m.Labels, pod)
	if err != nil {
		return nil, fmt.Errorf("daemonset %s: %w", name, err)
	}
	return []client.Object{&appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: m,
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelRole: role}},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: update,
			},
			Template: pods,
		},
	}}, nil
}

func port(name string, number int32, protocol corev1.Protocol, target int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, Protocol: protocol, TargetPort: intstr.FromInt32(target)}
}

func (s objects) service() *corev1.Service {
	ports := []corev1.ServicePort{port("http", 80, corev1.ProtocolTCP, httpPort), port("echo", 7, corev1.ProtocolTCP, echoPort)}
	if !s.Lossy {
		ports = append(ports, port("echo-udp", 7, corev1.ProtocolUDP, echoUDPPort))
	}
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: s.meta(v1alpha1.SystemNamespace, Service, v1alpha1.RoleProbe),
		Spec:       corev1.ServiceSpec{Selector: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleProbe}, Ports: ports},
	}
}
