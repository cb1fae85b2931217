package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// policy is what AnnotationTrafficPolicy remembers of a Service.
type policy struct {
	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy"`
	// HealthCheckNodePort is given up with the policy Local, and load balancers that know it are to find it again.
	HealthCheckNodePort int32 `json:"healthCheckNodePort,omitempty"`
}

// policyStep has a Service answered for by every node, or puts back what it had.
type policyStep struct {
	tools Tools
	key   types.NamespacedName
	back  bool
}

func (s *policyStep) ID() string {
	if s.back {
		return "ingress-back/" + s.key.String()
	}
	return "ingress/" + s.key.String()
}

func (s *policyStep) Title() string {
	if s.back {
		return fmt.Sprintf("Let only nodes with its pods answer for Service %s again", s.key)
	}
	return fmt.Sprintf("Let every node answer for Service %s", s.key)
}

func (s *policyStep) service(ctx context.Context) (*corev1.Service, error) {
	svc := &corev1.Service{}
	err := s.tools.Cluster.Get(ctx, s.key, svc)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", s.key, err)
	}
	return svc, nil
}

func (s *policyStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

// Do changes policy and memory in one write.
func (s *policyStep) Do(ctx context.Context) error {
	svc, err := s.service(ctx)
	if err != nil || svc == nil {
		return err
	}
	was := svc.DeepCopy()
	if err := s.change(svc); err != nil {
		return err
	}
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := s.tools.Cluster.Patch(ctx, svc, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("service %s: %w", s.key, err)
	}
	return nil
}

func (s *policyStep) change(svc *corev1.Service) error {
	if s.back {
		return restorePolicy(svc)
	}
	had, err := json.Marshal(policy{svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort})
	if err != nil {
		return err
	}
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	svc.Annotations[v1alpha1.AnnotationTrafficPolicy] = string(had)
	// The health-check port has to go with the policy (k8s.io/kubernetes pkg/apis/core/validation, ValidateService).
	svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
	return nil
}

func restorePolicy(svc *corev1.Service) error {
	var had policy
	if err := json.Unmarshal([]byte(svc.Annotations[v1alpha1.AnnotationTrafficPolicy]), &had); err != nil {
		return fmt.Errorf("service %s/%s: annotation %s: %w", svc.Namespace, svc.Name, v1alpha1.AnnotationTrafficPolicy, err)
	}
	delete(svc.Annotations, v1alpha1.AnnotationTrafficPolicy)
	svc.Spec.ExternalTrafficPolicy = had.ExternalTrafficPolicy
	if had.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		svc.Spec.HealthCheckNodePort = had.HealthCheckNodePort
	}
	return nil
}

func (s *policyStep) Verify(ctx context.Context) error {
	svc, err := s.service(ctx)
	switch {
	case err != nil || svc == nil:
		return err
	case s.back && svc.Annotations[v1alpha1.AnnotationTrafficPolicy] != "":
		return engine.NotYet("service %s has not its old externalTrafficPolicy", s.key)
	case !s.back && local(svc):
		return engine.NotYet("service %s has externalTrafficPolicy Local", s.key)
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *policyStep) Preview() ([]engine.Change, error) {
	to := corev1.ServiceExternalTrafficPolicyCluster
	if s.back {
		to = "as before"
	}
	return []engine.Change{{Verb: "patch", Object: "Service " + s.key.String(), Body: map[string]any{
		"spec": map[string]any{"externalTrafficPolicy": to},
	}}}, nil
}

// ingress switches Services for as long as their pods move.
func (p *Planner) ingress() []engine.Group {
	var steps []engine.Step
	if len(p.Survey.outstanding(false)) > 0 {
		for _, svc := range p.Survey.Ingress() {
			if local(svc) {
				steps = append(steps, &policyStep{tools: p.Tools, key: client.ObjectKeyFromObject(svc)})
			}
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return append(beside(steps), p.balancers("ingress")...)
}

// ingressBack puts back what was switched, now or in an earlier run.
func (p *Planner) ingressBack() []engine.Group {
	groups := inOrder(&policiesStep{tools: p.Tools, spec: p.spec()})
	if len(p.spec().Ingress.Targets) > 0 {
		groups = append(groups, inOrder(&answerStep{"restore", p.spec().Ingress.Targets})...)
	}
	return groups
}

// balancers gives load balancers time to see who answers now, and sees that they do.
func (p *Planner) balancers(id string) []engine.Group {
	var steps []engine.Step
	if settle := p.spec().Ingress.Settle.Duration; settle > 0 {
		steps = append(steps, &migration.PauseStep{
			Name:   "settle/" + id,
			About:  fmt.Sprintf("Give load balancers %s to see which nodes answer", settle),
			Length: settle,
			Now:    p.Tools.Now,
		})
	}
	if len(p.spec().Ingress.Targets) > 0 {
		steps = append(steps, &answerStep{id, p.spec().Ingress.Targets})
	}
	return inOrder(steps...)
}

// policiesStep puts back the policies of all Services that remember one. Which ones that are is known when its turn comes.
type policiesStep struct {
	tools Tools
	spec  Spec
}

func (*policiesStep) ID() string    { return "ingress-back" }
func (*policiesStep) Title() string { return "Put back the externalTrafficPolicy of Services" }

func (s *policiesStep) switched(ctx context.Context) ([]types.NamespacedName, error) {
	now := &Survey{}
	if err := s.tools.services(ctx, now); err != nil {
		return nil, err
	}
	var all []types.NamespacedName
	for i := range now.Services {
		if svc := &now.Services[i]; svc.Annotations[v1alpha1.AnnotationTrafficPolicy] != "" {
			all = append(all, client.ObjectKeyFromObject(svc))
		}
	}
	return all, nil
}

func (s *policiesStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *policiesStep) Do(ctx context.Context) error {
	switched, err := s.switched(ctx)
	for _, key := range switched {
		if err := (&policyStep{tools: s.tools, key: key, back: true}).Do(ctx); err != nil {
			return err
		}
	}
	return err
}

func (s *policiesStep) Verify(ctx context.Context) error {
	switched, err := s.switched(ctx)
	if err == nil && len(switched) > 0 {
		return engine.NotYet("service %s has not its old externalTrafficPolicy", switched[0])
	}
	return err
}

// answerStep sees that load balancers answer. It writes nothing.
type answerStep struct {
	about   string
	targets []string
}

// dialLimit bounds one attempt to reach a load balancer.
const dialLimit = 5 * time.Second

func (s *answerStep) ID() string  { return "answer/" + s.about }
func (*answerStep) Title() string { return "See that load balancers answer" }
func (*answerStep) Waits()        {}

func (*answerStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (*answerStep) Do(context.Context) error                    { return nil }

func (s *answerStep) Verify(ctx context.Context) error {
	for _, target := range s.targets {
		dial, cancel := context.WithTimeout(ctx, dialLimit)
		conn, err := new(net.Dialer).DialContext(dial, "tcp", target)
		cancel()
		if err != nil {
			return engine.NotYet("load balancer %s does not answer: %w", target, err)
		}
		_ = conn.Close()
	}
	return nil
}
