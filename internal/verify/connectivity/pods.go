package connectivity

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

const (
	// PoolsAnnotation asks Calico's IPAM for an address of one of these pools.
	PoolsAnnotation = "cni.projectcalico.org/ipv4pools"
	// Label is on every pod of a connectivity test. Its value is the pod's role: RoleAnswer, or
	// that of the pods that ask.
	Label = "replumb.dev/canary"
	// RoleAnswer is that of the pods that answer.
	RoleAnswer = "answer"
	// LabelAt distinguishes the pods that answer: its value is the place of their node among those
	// of Serve.
	LabelAt = "replumb.dev/canary-at"

	// KubeletPort is where kubelets answer on every node.
	KubeletPort = 10250

	user int64 = 65534
)

// Pods makes and finds the throw-away pods of a connectivity test: those that answer on two ports,
// of which a NetworkPolicy leaves one open, and those that ask.
type Pods struct {
	Client    client.Client
	Migration string
	Image     pull.Image
	// Pools of Calico to ask for addresses of; none takes the addresses as they come.
	Pools []string
	// Anyone has the policy admit any caller to the one port, for where callers appear with the
	// address of a node.
	Anyone bool
}

// Serve makes a pod that answers on each of the nodes, and a policy that lets only pods of the role
// asking reach the one port, and nothing the other.
func (p *Pods) Serve(ctx context.Context, asking string, nodes []string) error {
	if err := p.Create(ctx, p.policy(asking)); err != nil {
		return err
	}
	listen := func(port int) string { return ":" + strconv.Itoa(port) }
	for i, node := range nodes {
		pod := p.pod(RoleAnswer, node, []string{"canary", "answer", listen(testpod.OpenPort), listen(testpod.ClosedPort)})
		pod.Labels[LabelAt] = strconv.Itoa(i)
		if err := p.Create(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// Fronts are Services with one answering pod each, so that a call arrives at the node of that pod
// alone. kube-proxy gives calls from outside the address of a node, which the policy of Serve
// refuses.
func (p *Pods) Fronts(n int) []*corev1.Service {
	var out []*corev1.Service
	for i := range n {
		labels := p.Labels(RoleAnswer)
		labels[LabelAt] = strconv.Itoa(i)
		out = append(out, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "canary-" + strconv.Itoa(i), Labels: labels},
			Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: testpod.OpenPort}}},
		})
	}
	return out
}

// Front is the name of the Service in front of a pod that answers.
func Front(pod *corev1.Pod) client.ObjectKey {
	return client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: "canary-" + pod.Labels[LabelAt]}
}

// Start makes a pod on a node that runs a command of replumb canary.
func (p *Pods) Start(ctx context.Context, role, node string, command ...string) error {
	return p.Create(ctx, p.pod(role, node, append([]string{"canary"}, command...)))
}

// Create makes an object. One that an earlier try left, and that is still ending, is waited for.
func (p *Pods) Create(ctx context.Context, o client.Object) error {
	err := p.Client.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		return engine.NotYet("%s of an earlier run is still ending", o.GetName())
	}
	if err != nil {
		return fmt.Errorf("canary %s: %w", o.GetName(), err)
	}
	return nil
}

// Find returns the pods of a role that are not ending.
func (p *Pods) Find(ctx context.Context, role string) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := p.Client.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace), p.Labels(role)); err != nil {
		return nil, fmt.Errorf("looking for canaries: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() }), nil
}

// Labels of the pods of a role.
func (p *Pods) Labels(role string) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: p.Migration, Label: role}
}

// Remove ends all pods of the migration's tests.
func (p *Pods) Remove(ctx context.Context) error { return Remove(ctx, p.Client, p.Migration) }

// Remove ends the pods of all connectivity tests of a migration.
func Remove(ctx context.Context, c client.Client, migration string) error {
	ours := []client.DeleteAllOfOption{
		client.InNamespace(v1alpha1.SystemNamespace),
		client.HasLabels{Label},
		client.MatchingLabels{v1alpha1.LabelMigration: migration},
		client.GracePeriodSeconds(1),
	}
	for _, o := range []client.Object{&corev1.Pod{}, &networkingv1.NetworkPolicy{}} {
		if err := c.DeleteAllOf(ctx, o, ours...); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing canaries: %w", err)
		}
	}
	return nil
}

// Address of a pod that answers; NotYet until it does.
func Address(pod *corev1.Pod) (netip.Addr, error) {
	if !Ready(pod) {
		return netip.Addr{}, engine.NotYet("canary %s on node %s is not ready: %s", pod.Name, pod.Spec.NodeName, Why(pod))
	}
	all := calico.PodAddresses(pod)
	if len(all) == 0 {
		return netip.Addr{}, engine.NotYet("canary %s on node %s has no address", pod.Name, pod.Spec.NodeName)
	}
	return all[0], nil
}

// Said is what a pod that asks said at its end, and whether it failed; NotYet until it has ended.
func Said(pod *corev1.Pod) (text string, failed bool, err error) {
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		return "", false, engine.NotYet("canary %s on node %s is calling: %s", pod.Name, pod.Spec.NodeName, Why(pod))
	}
	text = pod.Status.Message
	for _, c := range pod.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil {
			text = strings.TrimSpace(t.Message)
		}
	}
	return text, pod.Status.Phase == corev1.PodFailed, nil
}

// Endpoints are where a Service answers over TCP, as host:port; none, if there is no such Service.
func Endpoints(ctx context.Context, c client.Reader, key client.ObjectKey) ([]string, error) {
	svc := &corev1.Service{}
	if err := c.Get(ctx, key, svc); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("service %s: %w", key, err)
	}
	var all []string
	for _, p := range svc.Spec.Ports {
		if p.Protocol == corev1.ProtocolTCP {
			all = append(all, net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(p.Port))))
		}
	}
	return all, nil
}

func (p *Pods) meta(name, role string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, GenerateName: name + "-", Labels: p.Labels(role)}
}

func (p *Pods) policy(asking string) *networkingv1.NetworkPolicy {
	from := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: p.Labels(asking)}}}
	if p.Anyone {
		from = nil
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: p.meta("canary", RoleAnswer),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: p.Labels(RoleAnswer)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  from,
				Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt(testpod.OpenPort))}},
			}},
		},
	}
}

func (p *Pods) pod(role, node string, args []string) *corev1.Pod {
	m := p.meta("canary-"+role, role)
	if len(p.Pools) > 0 {
		body, _ := json.Marshal(p.Pools) // strings always do
		m.Annotations = map[string]string{PoolsAnnotation: string(body)}
	}
	restart := corev1.RestartPolicyNever
	if role == RoleAnswer {
		restart = corev1.RestartPolicyAlways
	}
	return &corev1.Pod{
		ObjectMeta: m,
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: restart, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			ImagePullSecrets:              p.Image.References(),
			Containers: []corev1.Container{{
				Name: "canary", Image: p.Image.Name, Args: args, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: ptr.To(user), RunAsNonRoot: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true),
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
}
