package freeze

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const (
	// DeploysName is the name of the policy, and of its binding, that keeps others from deploying.
	DeploysName = "replumb-freeze-deploys"

	deploysProber = "replumb-freeze-deploys-probe"
)

// The conditions of a refused deployment, in CEL; all must hold. Pods, Jobs and scale are left out,
// so that controllers go on.
const (
	celSubject = `(request.operation == 'CREATE' ? object : oldObject)`

	// Objects of controllers are no deployments, such as cert-manager's solvers.
	celOwn = `!(has(` + celSubject + `.metadata.ownerReferences) &&
  ` + celSubject + `.metadata.ownerReferences.exists(r, has(r.controller) && r.controller))`

	// Custom kinds without spec: only creations and deletions count.
	celNewSpec = `request.operation != 'UPDATE' || ` + celDeploysProbe + ` ||
has(object.spec) != has(oldObject.spec) || (has(object.spec) && object.spec != oldObject.spec)`

	// celUnruled is true outside the control plane, whose controllers may be any ServiceAccount of
	// kube-system.
	celUnruled = `!(request.userInfo.username in ['system:apiserver', 'system:kube-controller-manager'] ||
  (has(request.userInfo.groups) && 'system:serviceaccounts:kube-system' in request.userInfo.groups))`

	celDeploysProbe = celManager + ` == '` + deploysProber + `'`

	celSubjectGlass = `!(has(` + celSubject + `.metadata.labels) && '` + v1alpha1.LabelBreakGlass + `' in ` + celSubject + `.metadata.labels) &&
!(request.operation == 'UPDATE' && has(object.metadata.labels) && '` + v1alpha1.LabelBreakGlass + `' in object.metadata.labels)`

	// celOthers is true of all but replumb's objects, whose deletions do not say who sends them.
	celOthers = `!(has(` + celSubject + `.metadata.labels) && '` + v1alpha1.LabelRole + `' in ` + celSubject + `.metadata.labels)`

	celDeploysObject = ` + request.kind.kind + ' ' + request.namespace + '/' + request.name + `

	celDeploysAdvice = `; to change it all the same, give it the label ` + v1alpha1.LabelBreakGlass + `=true; to lift the freeze: replumb unfreeze`
)

// Deploys freezes what people and tools deploy: only replumb, the control plane, allowed users and
// those who break the glass create, delete or change specs of workloads, Services, Ingresses,
// NetworkPolicies, Rollouts of Argo, routes of the Gateway API, and More. Programs' own writes go
// on: ConfigMaps, Secrets, Jobs, and scale.
type Deploys struct {
	Client    client.Client
	Migration string
	// Copies says, for refusals, that the cluster is copied and not changed.
	Copies bool
	// Include and Exclude choose namespaces; * is any part of a name. No include means all.
	Include, Exclude []string
	// More are further namespaced kinds. Kinds that are not served are no error: a rule holds once
	// they are.
	More []schema.GroupResource
	// Selector chooses objects by their labels. Nil means all.
	Selector *metav1.LabelSelector
	Allow    []string
}

var (
	_ engine.Undoer    = (*Deploys)(nil)
	_ engine.Previewer = (*Deploys)(nil)
)

func (s *Deploys) Policy() (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	return policyOf(DeploysName, s.Migration, s.spec()), bindingOf(DeploysName, s.Migration)
}

func (s *Deploys) spec() admissionv1.ValidatingAdmissionPolicySpec {
	ignore, forbidden := admissionv1.Ignore, metav1.StatusReasonForbidden
	return admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: s.deployed(), FailurePolicy: &ignore,
		MatchConditions: []admissionv1.MatchCondition{
			{Name: "changes", Expression: celNewSpec},
			{Name: "chosen", Expression: celDeploysProbe + " || (" + s.chosen() + ")"},
			{Name: "not-replumb", Expression: celManager + ` != '` + v1alpha1.FieldManager + `'`},
			{Name: "not-the-control-plane", Expression: celDeploysProbe + " || " + celUnruled},
			{Name: "not-allowed", Expression: celDeploysProbe + " || !(request.userInfo.username in " + quotes(s.Allow) + ")"},
			{Name: "not-made-by-a-controller", Expression: celOwn},
			{Name: "not-made-by-replumb", Expression: celOthers},
			{Name: "glass-not-broken", Expression: celSubjectGlass},
		},
		Validations: []admissionv1.Validation{{
			Expression: "false", Reason: &forbidden, Message: "deployments are frozen; see: replumb status", MessageExpression: s.message(),
		}},
	}
}

func (s *Deploys) message() string {
	if s.Copies {
		return quote("migration "+s.Migration+" is copying this cluster to another: ") + celDeploysObject +
			quote(" stays as it is, because what is copied must not change"+celDeploysAdvice)
	}
	return quote("migration "+s.Migration+" is changing the network of this cluster: ") + celDeploysObject +
		quote(
			" stays as it is until replumb finish or rollback "+s.Migration+" has ended; how far it is: replumb status "+s.Migration+celDeploysAdvice,
		)
}

func (s *Deploys) chosen() string {
	expression := "request.namespace != " + quote(v1alpha1.SystemNamespace)
	if len(s.Include) > 0 {
		expression += " && request.namespace.matches(" + quote(pattern(s.Include)) + ")"
	}
	if len(s.Exclude) > 0 {
		expression += " && !request.namespace.matches(" + quote(pattern(s.Exclude)) + ")"
	}
	if s.Selector != nil {
		expression += " && " + selects(s.Selector)
	}
	return expression
}

// selects matches labels in CEL: the policy's own selector would leave out the object that proves
// the freeze.
func selects(selector *metav1.LabelSelector) string {
	const labels = "(has(" + celSubject + ".metadata.labels) ? " + celSubject + ".metadata.labels : {})"
	all := []string{"true"}
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		all = append(
			all,
			fmt.Sprintf("%[1]s.exists(k, k == %[2]s && %[1]s[k] == %[3]s)", labels, quote(key), quote(selector.MatchLabels[key])),
		)
	}
	for _, r := range selector.MatchExpressions {
		has := labels + ".exists(k, k == " + quote(r.Key) + ")"
		in := fmt.Sprintf("%[1]s.exists(k, k == %[2]s && %[1]s[k] in %[3]s)", labels, quote(r.Key), quotes(r.Values))
		switch r.Operator {
		case metav1.LabelSelectorOpExists:
			all = append(all, has)
		case metav1.LabelSelectorOpDoesNotExist:
			all = append(all, "!"+has)
		case metav1.LabelSelectorOpIn:
			all = append(all, in)
		case metav1.LabelSelectorOpNotIn:
			all = append(all, "!"+in)
		}
	}
	return "(" + strings.Join(all, " && ") + ")"
}

func quotes(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func pattern(names []string) string {
	var all []string
	for _, n := range names {
		all = append(all, strings.ReplaceAll(regexp.QuoteMeta(n), `\*`, `.*`))
	}
	return "^(" + strings.Join(all, "|") + ")$"
}

type group struct {
	name, version    string
	resources, kinds []string
}

func always() []group {
	return []group{
		{"", "v1", []string{"services"}, []string{"Service"}},
		{"apps", "v1", []string{"daemonsets", "deployments", "statefulsets"}, []string{"DaemonSet", "Deployment", "StatefulSet"}},
		{"batch", "v1", []string{"cronjobs"}, []string{"CronJob"}},
		{"networking.k8s.io", "v1", []string{"ingresses", "networkpolicies"}, []string{"Ingress", "NetworkPolicy"}},
		{"argoproj.io", "*", []string{"rollouts"}, []string{"Rollout"}},
		{
			"gateway.networking.k8s.io", "*",
			[]string{"grpcroutes", "httproutes", "tcproutes", "tlsroutes", "udproutes"},
			[]string{"GRPCRoute", "HTTPRoute", "TCPRoute", "TLSRoute", "UDPRoute"},
		},
	}
}

func (s *Deploys) deployed() *admissionv1.MatchResources {
	equivalent, namespaced := admissionv1.Equivalent, admissionv1.NamespacedScope
	m := &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}, MatchPolicy: &equivalent,
	}
	all := always()
	for _, r := range s.More {
		all = append(all, group{name: r.Group, version: "*", resources: []string{r.Resource}})
	}
	for _, r := range all {
		m.ResourceRules = append(m.ResourceRules, admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update, admissionv1.Delete},
			Rule: admissionv1.Rule{
				APIGroups:   []string{r.name},
				APIVersions: []string{r.version},
				Resources:   r.resources,
				Scope:       &namespaced,
			},
		}})
	}
	return m
}

func (*Deploys) ID() string    { return "freeze/deploys" }
func (*Deploys) Title() string { return "Freeze what others deploy" }

func (s *Deploys) State(ctx context.Context) (engine.State, error) {
	return stateOf(ctx, s.Client, DeploysName, s.enforced, func(ctx context.Context) (bool, error) {
		return hasSpec(ctx, s.Client, DeploysName, s.spec())
	})
}

func (s *Deploys) enforced(ctx context.Context) (bool, error) {
	return prove(ctx, s.Client, DeploysName, deploysProber)
}

func (s *Deploys) Do(ctx context.Context) error {
	policy, binding := s.Policy()
	return ensureBoth(ctx, s.Client, policy, binding, nil)
}

func (s *Deploys) Verify(ctx context.Context) error {
	enforced, err := s.enforced(ctx)
	return proof(DeploysName, enforced, err)
}

func (s *Deploys) Undo() engine.Step {
	return &liftStep{
		client: s.Client, name: DeploysName, migration: s.Migration, prober: deploysProber,
		id: "tidy/freeze-deploys", title: "Allow others to deploy again",
	}
}

func (s *Deploys) Preview() ([]engine.Change, error) {
	policy, binding := s.Policy()
	return []engine.Change{
		{Verb: "create", Object: "ValidatingAdmissionPolicy " + DeploysName, Body: policy},
		{Verb: "create", Object: "ValidatingAdmissionPolicyBinding " + DeploysName, Body: binding},
	}, nil
}

// DeploysPossible is Possible for this freeze.
func DeploysPossible(ctx context.Context, c client.Client, migration string) error {
	policy, binding := (&Deploys{Migration: migration}).Policy()
	for _, o := range []client.Object{policy, binding} {
		if err := tryCreate(ctx, c, o); err != nil {
			return err
		}
	}
	_, err := present(ctx, c, DeploysName)
	return unavailable(err)
}

// DeploysInForce reports whether deployments are frozen. It reads the policy and nothing else.
func DeploysInForce(ctx context.Context, c client.Reader) (bool, error) {
	_, frozen, err := DeploysOf(ctx, c)
	return frozen, err
}

// DeploysOf is the migration that freezes deployments, by the policy alone.
func DeploysOf(ctx context.Context, c client.Reader) (migration string, frozen bool, err error) {
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	err = c.Get(ctx, client.ObjectKey{Name: DeploysName}, policy)
	if apierrors.IsNotFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("validatingadmissionpolicy %s: %w", DeploysName, err)
	}
	return policy.Labels[v1alpha1.LabelMigration], policy.Labels[v1alpha1.LabelRole] == v1alpha1.RoleFreeze, nil
}

// Freezes reports whether every freeze of deployments is about objects of a kind.
func Freezes(gk schema.GroupKind) bool {
	return slices.ContainsFunc(always(), func(g group) bool { return g.name == gk.Group && slices.Contains(g.kinds, gk.Kind) })
}

// Exempt takes an object out of the freezes. Deletions do not say who sends them, so replumb's own
// would be refused.
func Exempt(ctx context.Context, c client.Client, o client.Object) error {
	return c.Patch(ctx, o, client.RawPatch(types.MergePatchType, exemptPatch()), client.FieldOwner(v1alpha1.FieldManager))
}

// exemptPatch is what Exempt sends: a merge patch.
func exemptPatch() []byte {
	return []byte(`{"metadata":{"labels":{"` + v1alpha1.LabelBreakGlass + `":"true"}}}`)
}

// Refused reports whether an error is that a freeze has refused a request.
func Refused(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+Name)
}
