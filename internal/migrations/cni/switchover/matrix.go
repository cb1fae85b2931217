package switchover

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

const (
	// witnesses is how many nodes ask each other.
	witnesses  = 8
	askTime    = 20 * time.Second
	matrixTime = 5 * time.Minute
	// roleAsk is that of the pods that ask.
	roleAsk = "ask"
)

// The kinds of questions.
const (
	kindSame    = "same-node"
	kindCross   = "cross-node"
	kindService = "service"
	// kindAcross is by a Service to a pod of another node, behind a policy that lets in nothing but
	// the pods that ask.
	kindAcross  = "service-cross-node"
	kindCluster = "cluster-services"
	kindNode    = "node"
	kindDNS     = "dns"
	kindTarget  = "target"
	kindDenied  = "denied"
)

type question struct{ kind, ask string }

// score is how often a kind of question was answered as it should be, of how many.
type score struct{ good, all int }

func (s score) full() bool { return s.good == s.all }

type scores map[string]score

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

// worse says what was all right before and is not now. enforced says that policies have to hold
// now, and that what they let in arrives by Services on other nodes, whatever was before.
func worse(before, now scores, enforced bool) []string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		was, known := before[kind]
		is := now[kind]
		must := known && was.full()
		switch kind {
		case kindDenied:
			must = enforced
		case kindAcross:
			must = must || enforced
		}
		some := known && was.good > 0 && kind != kindDenied
		if must && is.good < is.all || some && is.good == 0 {
			out = append(out, fmt.Sprintf("%s: %d of %d (before: %d of %d)", kind, is.good, is.all, was.good, was.all))
		}
	}
	return out
}

// matrixStep asks who reaches whom, from a pod of each of some nodes. A baseline is written down,
// and later answers are held against it.
type matrixStep struct {
	deps        Deps
	migration   string
	name, about string
	image       pull.Image
	targets     []string
	baseline    bool
	// enforced says that policies have to hold.
	enforced bool

	questions map[string][]question
}

var (
	_ engine.Waiter    = (*matrixStep)(nil)
	_ engine.Abandoner = (*matrixStep)(nil)
	_ engine.Previewer = (*matrixStep)(nil)
)

func (s *matrixStep) ID() string            { return s.name }
func (s *matrixStep) Title() string         { return s.about }
func (*matrixStep) Waits()                  {}
func (*matrixStep) Deadline() time.Duration { return matrixTime }

// State keeps a baseline that is there: the old network may be gone.
func (s *matrixStep) State(ctx context.Context) (engine.State, error) {
	if !s.baseline {
		return engine.Pending, nil
	}
	st, err := s.deps.Status(ctx, s.migration)
	switch {
	case err != nil:
		return engine.Unknown, err
	case st.Baseline != "":
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *matrixStep) Preview() ([]engine.Change, error) {
	service := client.ObjectKeyFromObject(s.service()).String()
	all := append(
		s.pods().Changes(roleAsk), engine.Change{Verb: "create", Object: "Service " + service},
		engine.Change{Verb: "create", Object: "Service " + service + "-*"},
	)
	if s.baseline {
		recorded, err := migration.StatusChange(s.migration, map[string]any{"cni": map[string]any{"baseline": "what is reached"}})()
		return append(all, recorded...), err
	}
	return all, nil
}

// Do makes the pods that answer, a Service in front of all and one in front of each, and a policy.
func (s *matrixStep) Do(ctx context.Context) error {
	s.questions = nil
	if err := s.Abandon(ctx); err != nil {
		return err
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	for _, service := range append(s.pods().Fronts(len(nodes)), s.service()) {
		if err := s.pods().Create(ctx, service); err != nil {
			return err
		}
	}
	return s.pods().Serve(ctx, roleAsk, nodes)
}

func (s *matrixStep) pods() *connectivity.Pods {
	return &connectivity.Pods{Client: s.deps.Cluster, Migration: s.migration, Image: s.image}
}

func (s *matrixStep) Abandon(ctx context.Context) error {
	for _, service := range append(s.pods().Fronts(witnesses), s.service()) {
		if err := s.deps.Cluster.Delete(ctx, service); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("service %s: %w", service.Name, err)
		}
	}
	return s.pods().Remove(ctx)
}

// Verify sends the pods that ask when all that answer are ready.
func (s *matrixStep) Verify(ctx context.Context) error {
	answering, err := s.pods().Find(ctx, connectivity.RoleAnswer)
	if err != nil {
		return err
	}
	addresses := make([]netip.Addr, len(answering))
	for i := range answering {
		if addresses[i], err = connectivity.Address(&answering[i]); err != nil {
			return err
		}
	}
	asking, err := s.pods().Find(ctx, roleAsk)
	if err != nil {
		return err
	}
	if s.questions == nil || len(asking) < len(answering) {
		return s.send(ctx, answering, addresses)
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

func (s *matrixStep) send(ctx context.Context, answering []corev1.Pod, addresses []netip.Addr) error {
	common, err := s.common(ctx)
	if err != nil {
		return err
	}
	fronts := make([][]string, len(answering))
	for j := range answering {
		if fronts[j], err = connectivity.Endpoints(ctx, s.deps.Cluster, connectivity.Front(&answering[j])); err != nil {
			return err
		}
	}
	s.questions = map[string][]question{}
	for i := range answering {
		from := answering[i].Spec.NodeName
		all := slices.Clone(common)
		for j := range answering {
			kind := kindCross
			if answering[j].Spec.NodeName == from {
				kind = kindSame
			} else {
				for _, front := range fronts[j] {
					all = append(all, question{kindAcross, testpod.Dial + front})
				}
			}
			all = append(
				all,
				question{kind, testpod.Dial + netip.AddrPortFrom(addresses[j], testpod.OpenPort).String()},
				question{kindDenied, testpod.Try + netip.AddrPortFrom(addresses[j], testpod.ClosedPort).String()},
			)
		}
		s.questions[from] = all
		command := []string{"ask", "--timeout=" + askTime.String(), "--report=" + taskpod.ReportPath}
		for _, q := range all {
			command = append(command, q.ask)
		}
		if err := s.pods().Start(ctx, roleAsk, from, command...); err != nil {
			return err
		}
	}
	return engine.NotYet("canaries are asking each other")
}

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
		at, err := connectivity.Endpoints(ctx, s.deps.Cluster, key)
		if err != nil {
			return nil, err
		}
		for _, address := range at {
			all = append(all, question{kind, testpod.Dial + address})
		}
		if key.Name == "kube-dns" && len(at) > 0 {
			all = append(all, question{kindDNS, testpod.LookUp + "kubernetes.default.svc"})
		}
	}
	nodes, err := cluster.List[corev1.Node](ctx, s.deps.Cluster, &corev1.NodeList{})
	for i := range nodes {
		if ip := inventory.InternalIP(&nodes[i]); ip != "" && i < witnesses {
			all = append(all, question{kindNode, testpod.Dial + net.JoinHostPort(ip, strconv.Itoa(connectivity.KubeletPort))})
		}
	}
	return all, err
}

func (s *matrixStep) count(p *corev1.Pod, into scores) error {
	answers, failed, err := connectivity.Said(p)
	if err != nil {
		return err
	}
	questions := s.questions[p.Spec.NodeName]
	if failed || len(answers) != len(questions) {
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
		return s.deps.updateStatus(ctx, s.migration, func(st *v1alpha1.CNIStatus) { st.Baseline = now.String() })
	}
	st, err := s.deps.Status(ctx, s.migration)
	if err != nil {
		return err
	}
	before, err := parseScores(st.Baseline)
	if err != nil {
		return err
	}
	if bad := worse(before, now, s.enforced); len(bad) > 0 {
		s.questions = nil
		return &WorseError{What: bad, Masked: !now[kindAcross].full() && now[kindCross].full()}
	}
	return nil
}

// WorseError says what pods reached before and do not any more.
type WorseError struct {
	What []string
	// Masked says that pods reach each other by their own addresses, and not by Services.
	Masked bool
}

func (e *WorseError) Error() string {
	return "what was reached before is not any more: " + strings.Join(e.What, "; ")
}

func (e *WorseError) Advice() string {
	if e.Masked {
		return "pods reach those of other nodes by their addresses and not by Services: kube-proxy takes them for clients from outside; " +
			"see its clusterCIDR or detectLocalMode on every node (replumb explain RP5203), restart it, and run apply again, or rollback"
	}
	return "see the pods of the new network on the nodes; then run apply again, or rollback"
}

func (s *matrixStep) nodes(ctx context.Context) ([]string, error) {
	all, err := cluster.List[corev1.Node](ctx, s.deps.Cluster, &corev1.NodeList{})
	var out []string
	for i := range all {
		if inventory.NodeReady(&all[i]) {
			out = append(out, all[i].Name)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), witnesses)], err
}

func (s *matrixStep) service() *corev1.Service {
	labels := s.pods().Labels(connectivity.RoleAnswer)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "canary", Labels: labels},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: testpod.OpenPort}}},
	}
}
