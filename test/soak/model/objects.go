package model

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/lab/workload"
)

// Labels of pods, by which Services select them.
const (
	LabelApp    = "soak.replumb.local/app"
	LabelColour = "soak.replumb.local/colour"
)

// AnnotationRestarted is, on a pod template, the operation that restarted it last.
const AnnotationRestarted = "soak.replumb.local/restarted"

// The colours of an app: two Deployments that do the same, between which its Services switch.
const (
	blue  = "blue"
	green = "green"
)

// Taint is of the nodes that end without notice. What is probed does not run there: requests under way to a pod on a machine that is
// gone are lost whatever the network does.
const Taint = "soak.replumb.local/mortal"

// ServesOn is for how long a pod of what is probed goes on serving after it was asked to end: until every node leads elsewhere, also if
// the API server that the leading controller manager writes to was killed, and another has to take the lead first.
const ServesOn = 40

// Deployment makes one colour of an app.
func Deployment(namespace, app, colour string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{LabelApp: app, LabelColour: colour}
	d := workload.Echo{Namespace: namespace, Name: app, PartOf: "soak", Replicas: replicas}.Deployment()
	d.Name = app + "-" + colour
	d.Labels, d.Spec.Template.Labels = labels, labels
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	spread := &d.Spec.Template.Spec.TopologySpreadConstraints[0]
	spread.LabelSelector = d.Spec.Selector
	pod := &d.Spec.Template.Spec
	if namespace == Steady {
		spread.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor)
		ServeOn(pod)
		return d
	}
	spread.WhenUnsatisfiable = corev1.ScheduleAnyway
	pod.Tolerations = []corev1.Toleration{{Key: Taint, Operator: corev1.TolerationOpExists}}
	return d
}

// ServeOn has the containers of a pod serve for ServesOn seconds after they were asked to end.
func ServeOn(pod *corev1.PodSpec) {
	pod.TerminationGracePeriodSeconds = ptr.To[int64](ServesOn + 20)
	for i := range pod.Containers {
		pod.Containers[i].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
			Sleep: &corev1.SleepAction{Seconds: ServesOn},
		}}
	}
}

func selector(app, colour string) map[string]string {
	return map[string]string{LabelApp: app, LabelColour: colour}
}

// service is one of type ClusterIP with what the API server would default.
func service(key Key, pods map[string]string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name,
			Labels: map[string]string{labelPrefix + "0": "made"}, Annotations: map[string]string{annotationPrefix + "0": "made"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: pods, Ports: ports, SessionAffinity: corev1.ServiceAffinityNone,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster),
		},
	}
}

// basicPorts are those of an echo server.
func basicPorts() []corev1.ServicePort {
	return []corev1.ServicePort{
		{Name: "http", Protocol: corev1.ProtocolTCP, Port: workload.HTTPPort, TargetPort: intstr.FromString("http")},
		{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: workload.TCPPort, TargetPort: intstr.FromString("tcp")},
		{Name: "udp", Protocol: corev1.ProtocolUDP, Port: workload.UDPPort, TargetPort: intstr.FromString("udp")},
	}
}

// affine has each client stay with its pod, for as long as Kubernetes has it by default.
func affine(svc *corev1.Service) {
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10800)}}
}

func headless(svc *corev1.Service) {
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
}

func external(key Key) *corev1.Service {
	svc := service(key, nil)
	svc.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: key.Name + ".example.com", SessionAffinity: corev1.ServiceAffinityNone,
	}
	return svc
}

// loadBalancerClass is no controller's, so that nothing outside is asked for.
const loadBalancerClass = "example.com/none"

// retype gives a Service a type, with what belongs to it and nothing that belonged to another. Node ports come from the function.
func retype(svc *corev1.Service, t corev1.ServiceType, nodePort func() int32) {
	spec := &svc.Spec
	spec.Type, spec.ExternalTrafficPolicy, spec.LoadBalancerClass, spec.AllocateLoadBalancerNodePorts = t, "", nil, nil
	for i := range spec.Ports {
		spec.Ports[i].NodePort = 0
		if t == corev1.ServiceTypeNodePort {
			spec.Ports[i].NodePort = nodePort()
		}
	}
	if t != corev1.ServiceTypeClusterIP {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if t == corev1.ServiceTypeLoadBalancer {
		spec.LoadBalancerClass, spec.AllocateLoadBalancerNodePorts = ptr.To(loadBalancerClass), ptr.To(false)
	}
}

// endpoints are what a Service without selector stands before: addresses that no one has (RFC 5737).
func endpoints(key Key, ports []corev1.ServicePort, hosts ...int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name + "-by-hand",
			Labels: map[string]string{discoveryv1.LabelServiceName: key.Name, discoveryv1.LabelManagedBy: "soak"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, h := range hosts {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("192.0.2.%d", h)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	for _, p := range ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
			Name: ptr.To(p.Name), Protocol: ptr.To(p.Protocol), Port: ptr.To(p.Port),
		})
	}
	return slice
}

// patch is the write that makes of before what is after.
func patch[T client.Object](before, after T) Write {
	body, err := jsonmergepatch.CreateThreeWayJSONMergePatch(encode(before), encode(after), encode(before))
	if err != nil {
		panic(fmt.Sprintf("two objects have no difference: %v", err)) // both are of the same Go type
	}
	return Write{Verb: Patch, Object: before.DeepCopyObject().(client.Object), Patch: body}
}

func encode(o runtime.Object) []byte {
	body, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprintf("%T has no JSON: %v", o, err)) // an object of the API
	}
	return body
}

func creation(o client.Object) Write {
	return Write{Verb: Create, Object: o.DeepCopyObject().(client.Object)}
}

func deletion(o client.Object) Write {
	return Write{Verb: Delete, Object: o.DeepCopyObject().(client.Object)}
}
