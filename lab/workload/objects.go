package workload

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/verify/probe"
)

// The images, which the lab loads into every node.
const (
	EchoImage   = "replumb.local/echo:lab"
	ClientImage = "replumb.local/client:lab"
)

// Labels of the objects.
const (
	labelName   = "app.kubernetes.io/name"
	labelPartOf = "app.kubernetes.io/part-of"
)

// Ports of an echo Service.
const (
	HTTPPort = 80
	TCPPort  = 9000
	UDPPort  = 9001

	echoHTTPPort = 8080
)

// Namespace is a namespace.
func Namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// Echo is a Deployment of echo servers, behind a Service of the same name.
type Echo struct {
	Namespace, Name, PartOf string
	Replicas                int32
}

// Shop is the example application. It has Services with endpoints on every node and one, payments, with a single
// endpoint, so that some clients always have to leave their node.
func Shop(namespace string) []Echo {
	shop := []Echo{
		{Name: "front", Replicas: 2},
		{Name: "cart", Replicas: 2},
		{Name: "catalog", Replicas: 2},
		{Name: "payments", Replicas: 1},
	}
	for i := range shop {
		shop[i].Namespace, shop[i].PartOf = namespace, "shop"
	}
	return shop
}

// Objects returns the Deployment and the Service.
func (e Echo) Objects() []runtime.Object {
	return []runtime.Object{e.Deployment(), e.Service()}
}

func (e Echo) labels() map[string]string {
	return map[string]string{labelName: e.Name, labelPartOf: e.PartOf}
}

// Deployment spreads the replicas evenly over the nodes.
func (e Echo) Deployment() *appsv1.Deployment {
	template := e.template()
	template.Spec.TopologySpreadConstraints = spread(e.selector())
	return &appsv1.Deployment{
		ObjectMeta: e.meta(),
		Spec: appsv1.DeploymentSpec{
			Replicas: &e.Replicas,
			Selector: e.selector(),
			// A rollout starts a new pod before it ends an old one, so that Services always have somewhere to send to.
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1)),
				},
			},
			Template: template,
		},
	}
}

// spread puts as many pods on each node as on any other.
func spread(selector *metav1.LabelSelector) []corev1.TopologySpreadConstraint {
	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector,
		// Each revision is spread by itself, or a rollout could leave all pods on one node.
		MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
	}}
}

func (e Echo) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name, Labels: e.labels()}
}

func (e Echo) selector() *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: e.labels()} }

func (e Echo) template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: e.labels()},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{e.container()}},
	}
}

func (e Echo) container() corev1.Container {
	return corev1.Container{
		Name: "echo", Image: EchoImage, ImagePullPolicy: corev1.PullNever, Resources: requests("20m"),
		Env: []corev1.EnvVar{
			{Name: "NAME", Value: e.Name}, fieldEnv("NODE_NAME", "spec.nodeName"), fieldEnv("POD_NAME", "metadata.name"),
		},
		Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: echoHTTPPort},
			{Name: "tcp", ContainerPort: TCPPort},
			{Name: "udp", ContainerPort: UDPPort, Protocol: corev1.ProtocolUDP},
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: "/healthz", Port: intstr.FromString("http"),
			}},
			// On a machine that labs share with a compiler an answer may take a while; no pod is to count as dead for that.
			PeriodSeconds: 2, TimeoutSeconds: 5,
		},
	}
}

func requests(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

// Service selects the pods of the Deployment.
func (e Echo) Service() *corev1.Service {
	service := clusterIPService(e.Namespace, e.Name, e.labels())
	service.Labels = e.labels()
	return service
}

func clusterIPService(namespace, name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Selector: selector,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: HTTPPort, TargetPort: intstr.FromString("http")},
				{Name: "tcp", Port: TCPPort, TargetPort: intstr.FromString("tcp")},
				{Name: "udp", Port: UDPPort, TargetPort: intstr.FromString("udp"), Protocol: corev1.ProtocolUDP},
			},
		},
	}
}

// FurtherServices are n Services over the pods of the shop, to populate the range.
func FurtherServices(namespace string, n int) []runtime.Object {
	services := make([]runtime.Object, 0, n)
	for i := range n {
		name := fmt.Sprintf("further-%03d", i+1)
		services = append(services, clusterIPService(namespace, name, map[string]string{labelPartOf: "shop"}))
	}
	return services
}

// Client is a pod on one node that probes the targets of its configuration and reports through its log. It is never
// restarted: a second life would begin a second count.
func Client(namespace, name, node string, config probe.Config) (*corev1.Pod, error) {
	data, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode configuration of client %s: %w", name, err)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{labelName: "client", labelPartOf: "probes"},
		},
		Spec: corev1.PodSpec{
			NodeName:      node,
			RestartPolicy: corev1.RestartPolicyNever,
			// More ports, so that one is not used again soon: see the nodes' memory of datagrams in the lab.
			SecurityContext: &corev1.PodSecurityContext{
				Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_local_port_range", Value: "1024 65535"}},
			},
			DNSConfig: askAgainSoon(),
			Containers: []corev1.Container{{
				Name: "client", Image: ClientImage, ImagePullPolicy: corev1.PullNever,
				// It is what measures: on a busy machine it must not wait for a processor longer than an answer takes.
				Resources: requests("100m"),
				Env:       []corev1.EnvVar{{Name: "CLIENT_CONFIG", Value: string(data)}, fieldEnv("POD_IPS", "status.podIPs")},
			}},
		},
	}, nil
}

// askAgainSoon is for pods that measure. A datagram can get lost when a name server ends: kube-proxy hears of it a moment
// later; and when Calico restarts its tunnels. Resolvers send it again, after five seconds by default and once; here after one, and for
// as long as TCP sends a lost packet again within the probe's time of five seconds. It shows as a late answer, like the lost packet of a TCP
// connection.
func askAgainSoon() *corev1.PodDNSConfig {
	return &corev1.PodDNSConfig{
		Options: []corev1.PodDNSConfigOption{{Name: "timeout", Value: ptr.To("1")}, {Name: "attempts", Value: ptr.To("4")}},
	}
}

// AskOnce has a resolver send no datagram again, for pods that measure which of them are lost.
func AskOnce() *corev1.PodDNSConfig {
	return &corev1.PodDNSConfig{
		Options: []corev1.PodDNSConfigOption{{Name: "timeout", Value: ptr.To("10")}, {Name: "attempts", Value: ptr.To("1")}},
	}
}

// labelRoving is the name of the Deployment that clients belong to.
const labelRoving = "replumb.local/clients"

// Clients is a Deployment of such pods, on any nodes. When it is restarted, each new pod counts by itself.
func Clients(namespace, name string, replicas int32, config probe.Config) (*appsv1.Deployment, error) {
	pod, err := Client(namespace, "", "", config)
	if err != nil {
		return nil, err
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways // no other is accepted
	pod.Labels[labelRoving] = name
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{labelRoving: name}}
	pod.Spec.TopologySpreadConstraints = spread(selector)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: selector,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}, nil
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}
