package cni

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

const (
	// witnesses is how many nodes ask each other.
	witnesses   = 8
	askTime     = 20 * time.Second
	matrixTime  = 5 * time.Minute
	kubeletPort = 10250
	nobody      = int64(65534)
)

// The kinds of questions.
const (
	kindSame    = "same-node"
	kindCross   = "cross-node"
	kindService = "service"
	kindCluster = "cluster-services"
	kindNode    = "node"
	kindDNS     = "dns"
	kindTarget  = "target"
	kindDenied  = "denied"
)

// question is asked from a pod of each node.
type question struct{ kind, ask string }

// score is how often a kind of question was answered as it should be, of how many.
type score struct{ good, all int }

// scores by kind.
type scores map[string]score

// String is a form that parseScores reads.
func (s scores) String() string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(s)) {
		out = append(out, fmt.Sprintf("%s=%d/%d", kind, s[kind].good, s[kind].all))
	}
	return strings.Join(out, " ")
}

func parseScores(text string) (scores, error) {
	out := scores{}
	for field := range strings.FieldsSeq(text) {
		kind, counts, _ := strings.Cut(field, "=")
		good, all, _ := strings.Cut(counts, "/")
		g, err := strconv.Atoi(good)
		a, err2 := strconv.Atoi(all)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("baseline %q cannot be read", text)
		}
		out[kind] = score{g, a}
	}
	return out, nil
}

// worse says what was all right before and is not now. enforced says that policies have to hold now, whether they did or not; else it
// does not matter whether they do.
func worse(before, now scores, enforced bool) []string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		was, known := before[kind]
		is := now[kind]
		must := known && was.good == was.all
		if kind == kindDenied {
			must = enforced
		}
		some := known && was.good > 0 && kind != kindDenied
		if must && is.good < is.all || some && is.good == 0 {
			out = append(out, fmt.Sprintf("%s: %d of %d (before: %d of %d)", kind, is.good, is.all, was.good, was.all))
		}
	}
	return out
}

// matrixStep asks, from a pod of each of some nodes, who reaches whom. As a baseline it writes the answers down, else it holds them
// against those.
type matrixStep struct {
	tools       Tools
	migration   string
	name, about string
	image       string
	targets     []string
	baseline    bool
	// enforced says that policies have to hold.
	enforced bool

	questions map[string][]question
}

var (
	_ engine.Waiter    = (*matrixStep)(nil)
	_ engine.Abandoner = (*matrixStep)(nil)
)

func (s *matrixStep) ID() string            { return s.name }
func (s *matrixStep) Title() string         { return s.about }
func (*matrixStep) Waits()                  {}
func (*matrixStep) Deadline() time.Duration { return matrixTime }

// State implements engine.Step: a baseline that is there is kept, since what made it may be gone.
func (s *matrixStep) State(ctx context.Context) (engine.State, error) {
	if !s.baseline {
		return engine.Pending, nil
	}
	st, err := s.tools.remembers(ctx, s.migration)
	switch {
	case err != nil:
		return engine.Unknown, err
	case st.Baseline != "":
		return engine.Done, nil
	}
	return engine.Pending, nil
}

// Do makes the pods that answer, a Service in front of them, and a policy.
func (s *matrixStep) Do(ctx context.Context) error {
	s.questions = nil
	if err := s.Abandon(ctx); err != nil {
		return err
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	for _, o := range []client.Object{s.policy(), s.service()} {
		if err := s.create(ctx, o); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		port := func(p int) string { return ":" + strconv.Itoa(p) }
		if err := s.create(ctx, s.pod("answer", n, "canary", "answer", port(testpod.OpenPort), port(testpod.ClosedPort))); err != nil {
			return err
		}
	}
	return nil
}

// Abandon implements engine.Abandoner.
func (s *matrixStep) Abandon(ctx context.Context) error {
	err := s.tools.Cluster.Delete(ctx, s.service())
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("service %s: %w", s.service().Name, err)
	}
	return connectivity.Remove(ctx, s.tools.Cluster, s.migration)
}

func (s *matrixStep) create(ctx context.Context, o client.Object) error {
	err := s.tools.Cluster.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		return engine.NotYet("%s of an earlier run is still there", o.GetName())
	}
	if err != nil {
		return fmt.Errorf("canary %s: %w", o.GetName(), err)
	}
	return nil
}

// Verify implements engine.Step: when all that answer are ready it sends those that ask.
func (s *matrixStep) Verify(ctx context.Context) error {
	answering, err := s.pods(ctx, "answer")
	if err != nil {
		return err
	}
	for i := range answering {
		if p := &answering[i]; !connectivity.Ready(p) || len(calico.PodAddresses(p)) == 0 {
			return engine.NotYet("canary %s on node %s is not ready: %s", p.Name, p.Spec.NodeName, connectivity.Why(p))
		}
	}
	asking, err := s.pods(ctx, "ask")
	if err != nil {
		return err
	}
	if s.questions == nil || len(asking) < len(answering) {
		return s.send(ctx, answering)
	}
	result := scores{}
	for i := range asking {
		if err := s.count(&asking[i], result); err != nil {
			return err
		}
	}
	if err := s.conclude(ctx, result); err != nil {
		return err
	}
	return s.Abandon(ctx)
}

func (s *matrixStep) send(ctx context.Context, answering []corev1.Pod) error {
	common, err := s.common(ctx)
	if err != nil {
		return err
	}
	s.questions = map[string][]question{}
	for i := range answering {
		from := answering[i].Spec.NodeName
		all := slices.Clone(common)
		for j := range answering {
			kind := kindCross
			if answering[j].Spec.NodeName == from {
				kind = kindSame
			}
			a := calico.PodAddresses(&answering[j])[0]
			all = append(
				all,
				question{kind, testpod.Dial + netip.AddrPortFrom(a, testpod.OpenPort).String()},
				question{kindDenied, testpod.Try + netip.AddrPortFrom(a, testpod.ClosedPort).String()},
			)
		}
		s.questions[from] = all
		args := []string{"canary", "ask", "--timeout=" + askTime.String(), "--report=" + report}
		for _, q := range all {
			args = append(args, q.ask)
		}
		if err := s.create(ctx, s.pod("ask", from, args...)); err != nil {
			return err
		}
	}
	return engine.NotYet("canaries are asking each other")
}

// common are the questions that do not depend on who asks.
func (s *matrixStep) common(ctx context.Context) ([]question, error) {
	var all []question
	for _, target := range s.targets {
		all = append(all, question{kindTarget, testpod.Dial + target})
	}
	own := s.service()
	for key, kind := range map[client.ObjectKey]string{
		client.ObjectKeyFromObject(own):                          kindService,
		{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}: kindCluster,
		{Namespace: metav1.NamespaceSystem, Name: "kube-dns"}:    kindCluster,
	} {
		svc := &corev1.Service{}
		err := s.tools.Cluster.Get(ctx, key, svc)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("service %s: %w", key, err)
		}
		for _, p := range svc.Spec.Ports {
			if p.Protocol == corev1.ProtocolTCP {
				all = append(all, question{kind, testpod.Dial + net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(p.Port)))})
			}
		}
		if key.Name == "kube-dns" {
			all = append(all, question{kindDNS, testpod.LookUp + "kubernetes.default.svc"})
		}
	}
	nodes, err := cluster.List[corev1.Node](ctx, s.tools.Cluster, &corev1.NodeList{})
	for i := range nodes {
		if ip := cluster.InternalIP(&nodes[i]); ip != "" && i < witnesses {
			all = append(all, question{kindNode, testpod.Dial + net.JoinHostPort(ip, strconv.Itoa(kubeletPort))})
		}
	}
	return all, err
}

// count what a pod that asked has found out.
func (s *matrixStep) count(p *corev1.Pod, into scores) error {
	if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		return engine.NotYet("canary %s on node %s is asking: %s", p.Name, p.Spec.NodeName, connectivity.Why(p))
	}
	answers := p.Status.Message
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil {
			answers = strings.TrimSpace(t.Message)
		}
	}
	questions := s.questions[p.Spec.NodeName]
	if p.Status.Phase == corev1.PodFailed || len(answers) != len(questions) {
		return fmt.Errorf("a pod that asks on node %s: %s", p.Spec.NodeName, answers)
	}
	for i, q := range questions {
		is := into[q.kind]
		is.all++
		if (answers[i] == testpod.Yes) != (q.kind == kindDenied) {
			is.good++
		}
		into[q.kind] = is
	}
	return nil
}

func (s *matrixStep) conclude(ctx context.Context, now scores) error {
	if s.baseline {
		return s.tools.remember(ctx, s.migration, func(st *v1alpha1.CNIStatus) { st.Baseline = now.String() })
	}
	st, err := s.tools.remembers(ctx, s.migration)
	if err != nil {
		return err
	}
	before, err := parseScores(st.Baseline)
	if err != nil {
		return err
	}
	if bad := worse(before, now, s.enforced); len(bad) > 0 {
		s.questions = nil
		return fmt.Errorf("not everybody is reached who was: %s", strings.Join(bad, "; "))
	}
	return nil
}

// nodes are those that ask each other.
func (s *matrixStep) nodes(ctx context.Context) ([]string, error) {
	all, err := cluster.List[corev1.Node](ctx, s.tools.Cluster, &corev1.NodeList{})
	var out []string
	for i := range all {
		if cluster.NodeReady(&all[i]) {
			out = append(out, all[i].Name)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), witnesses)], err
}

func (s *matrixStep) pods(ctx context.Context, role string) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := s.tools.Cluster.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace), s.labels(role)); err != nil {
		return nil, fmt.Errorf("looking for canaries: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() }), nil
}

func (s *matrixStep) labels(role string) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: s.migration, connectivity.Label: role}
}

func (s *matrixStep) service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "canary", Labels: s.labels("answer")},
		Spec:       corev1.ServiceSpec{Selector: s.labels("answer"), Ports: []corev1.ServicePort{{Port: testpod.OpenPort}}},
	}
}

// policy lets those that ask reach one of the ports of those that answer, and no other.
func (s *matrixStep) policy() *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, GenerateName: "canary-", Labels: s.labels("answer")},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: s.labels("answer")},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: s.labels("ask")}}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt(testpod.OpenPort))}},
			}},
		},
	}
}

func (s *matrixStep) pod(role, node string, args ...string) *corev1.Pod {
	restart := corev1.RestartPolicyNever
	if role == "answer" {
		restart = corev1.RestartPolicyAlways
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, GenerateName: "canary-" + role + "-", Labels: s.labels(role)},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: restart, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "canary", Image: s.image, Args: args, TerminationMessagePath: report,
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: ptr.To(nobody), RunAsNonRoot: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true),
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
}
