package workload

import (
	"net/netip"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// IngressImage holds an ingress controller, with what it controls: it leads to Services as Ingresses of IngressClass say, over
// HTTP and TLS. Of hosts that none names, http://INGRESS/NAMESPACE/SERVICE/... is that Service, and / the controller itself.
const IngressImage = "replumb.local/ingress:lab"

// Where the ingress is, and how balancers outside the cluster find it on nodes.
const (
	IngressNamespace = "ingress"
	IngressName      = "ingress"
	// IngressNodePort leads to it, and on IngressHealthPort a node says whether it has a pod of it.
	IngressNodePort    = 30080
	IngressTLSNodePort = 30443
	IngressHealthPort  = 32080
	// IngressClass is the class of Ingresses it looks after.
	IngressClass = "lab"
	// balancerClass is of no controller: balancers of a lab are its own, as those that are set up by hand or by Terraform are.
	balancerClass = "replumb.local/edge"
)

// ingressDrain is how long a pod that is to end goes on serving: until a kube-proxy has said so where balancers ask, which
// takes it a second or two, and they have asked twice.
const ingressDrain = "10s"

// Ingress is what brings requests from outside into the cluster: two pods, behind a Service by which requests stay on the
// node that they arrive at. Its Ingresses are told to be found at the address, if that is valid.
func Ingress(address netip.Addr) []runtime.Object {
	objects := append([]runtime.Object{Namespace(IngressNamespace)}, ingressAccess()...)
	return append(objects, ingressDeployment(address), ingressService(), ingressBudget())
}

func ingressLabels() map[string]string {
	return map[string]string{labelName: IngressName, labelPartOf: IngressNamespace}
}

func ingressMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: IngressNamespace, Name: IngressName, Labels: ingressLabels()}
}

func ingressSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: ingressLabels()}
}

func ingressDeployment(address netip.Addr) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: ingressMeta(), Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](2), Selector: ingressSelector(),
		// Balancers outside must have noticed a new pod before an old one goes.
		MinReadySeconds: 3,
		Strategy: appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1)),
			},
		},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: ingressLabels()},
			Spec: corev1.PodSpec{
				ServiceAccountName: IngressName,
				Affinity:           &corev1.Affinity{PodAntiAffinity: apart(ingressSelector())},
				DNSConfig:          askAgainSoon(),
				Containers:         []corev1.Container{ingressContainer(address)},
			},
		},
	}}
}

// apart keeps pods from each other's nodes, as long as there are others.
func apart(selector *metav1.LabelSelector) *corev1.PodAntiAffinity {
	return &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
		Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: selector, TopologyKey: corev1.LabelHostname},
	}}}
}

func ingressContainer(address netip.Addr) corev1.Container {
	status := ""
	if address.IsValid() {
		status = address.String()
	}
	return corev1.Container{
		Name: "ingress", Image: IngressImage, ImagePullPolicy: corev1.PullNever, Resources: requests("50m"),
		Env: []corev1.EnvVar{
			{Name: "INGRESS_HTTP", Value: ":8080"},
			{Name: "INGRESS_HTTPS", Value: ":8443"},
			{Name: "INGRESS_CLASS", Value: IngressClass},
			{Name: "INGRESS_ADDRESS", Value: status},
			{Name: "INGRESS_DRAIN", Value: ingressDrain},
			fieldEnv("NODE_NAME", "spec.nodeName"), fieldEnv("POD_NAME", "metadata.name"),
		},
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: echoHTTPPort}, {Name: "https", ContainerPort: ingressTLSPort}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: "/healthz", Port: intstr.FromString("http"),
			}},
			PeriodSeconds: 2, TimeoutSeconds: 5,
		},
	}
}

func ingressService() *corev1.Service {
	return &corev1.Service{ObjectMeta: ingressMeta(), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(balancerClass), Selector: ingressLabels(),
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: IngressHealthPort,
		Ports: []corev1.ServicePort{
			{Name: "http", Port: HTTPPort, TargetPort: intstr.FromString("http"), NodePort: IngressNodePort},
			{Name: "https", Port: HTTPSPort, TargetPort: intstr.FromString("https"), NodePort: IngressTLSNodePort},
		},
	}}
}

func ingressBudget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: ingressMeta(), Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: ingressSelector(),
	}}
}
