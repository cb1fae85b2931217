package hop

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// trialPrefix begins the names of throw-away Services in namespaces of users.
const trialPrefix = "replumb-trial-"

// trialsAtOnce bounds the namespaces in which Services are tried at the same time.
const trialsAtOnce = 8

// TryArrivals has a throw-away Service with the labels of each of some Services leave in its
// namespace, and asks by a dry run whether it would be given an address again. No dry run alone can
// ask that: it takes a Service that has left.
func (s *Steps) TryArrivals(like []*services.Entry) engine.Step {
	var changes []engine.Change
	for _, e := range like {
		name := "Service " + e.Service.Namespace + "/" + trialPrefix + "…"
		changes = append(changes,
			engine.Change{Verb: "create", Object: name}, engine.Change{Verb: "patch", Object: name}, engine.Change{Verb: "delete", Object: name})
	}
	return &engine.Write{
		Name: "trial/arrivals", About: "Try in each namespace whether a Service that has left its address may have another one", As: engine.RoleOwn,
		Write: func(ctx context.Context) error {
			if err := removeTrials(ctx, s.Client, s.Migration); err != nil {
				return err
			}
			eg, ctx := errgroup.WithContext(ctx)
			eg.SetLimit(trialsAtOnce)
			for _, e := range like {
				eg.Go(func() error { return s.tryArrival(ctx, e) })
			}
			return eg.Wait()
		},
		Changes: engine.Shows(changes...),
	}
}

// tryArrival passes over who refuses the trial itself: what a hop needs beside that was asked by
// dry runs.
func (s *Steps) tryArrival(ctx context.Context, e *services.Entry) error {
	trial := trialLike(s.Migration, e.Service)
	err := s.Client.Create(ctx, trial, client.FieldOwner(v1alpha1.FieldManager))
	if err != nil {
		return unlessRefused(client.IgnoreNotFound(err), trial)
	}
	err = s.tryReturn(ctx, e, trial)
	if gone := client.IgnoreNotFound(s.Client.Delete(ctx, trial)); err == nil && gone != nil {
		err = fmt.Errorf("service %s/%s: %w", trial.Namespace, trial.Name, gone)
	}
	return err
}

func (s *Steps) tryReturn(ctx context.Context, e *services.Entry, trial *corev1.Service) error {
	leave := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"type":"ExternalName","externalName":"trial.invalid","clusterIP":null,`+
		`"clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null,"internalTrafficPolicy":null}}`))
	if err := s.Client.Patch(ctx, trial, leave, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return unlessRefused(err, trial)
	}
	back := fmt.Sprintf(`{"spec":{"type":%q,"externalName":null}}`, e.AsOwned(e.Service).Spec.Type)
	refused, err := admission.Patch(ctx, s.Client, trial.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(back)))
	switch {
	case err != nil:
		return fmt.Errorf("service %s/%s: %w", trial.Namespace, trial.Name, err)
	case refused == nil || refused.Quota: // quotas are counted by a check
		return nil
	case refused.Down:
		return engine.NotYet("service %s/%s: %w", trial.Namespace, trial.Name, refused)
	}
	return &fault.Hinted{
		Err: fmt.Errorf("service %s may leave its address, and would be given no other: %w", e.Key(), refused),
		Hint: "except it from what refuses that (updates of Services of type ExternalName), or let it keep its address: " +
			"kubectl annotate service -n " + e.Service.Namespace + " " + e.Service.Name + " " + v1alpha1.AnnotationStrategy + "=" + v1alpha1.StrategyPin,
	}
}

func unlessRefused(err error, trial *corev1.Service) error {
	if refused := admission.Of(err); refused == nil && err != nil {
		return fmt.Errorf("trying a Service in namespace %s: %w", trial.Namespace, err)
	}
	return nil
}

// trialLike has no address, and nobody is led to it.
func trialLike(migration string, svc *corev1.Service) *corev1.Service {
	marks := map[string]string{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleCanary}
	for key, value := range svc.Labels {
		if marks[key] == "" {
			marks[key] = value
		}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, GenerateName: trialPrefix, Labels: marks},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 9, Protocol: corev1.ProtocolTCP}}},
	}
}

// trialsLeft are trials of runs that were killed. Their owners could mark others so, and lose them.
func trialsLeft(ctx context.Context, c client.Client, migration string) (left []corev1.Service, err error) {
	all := &corev1.ServiceList{}
	err = c.List(ctx, all, client.MatchingLabels{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleCanary})
	if err != nil {
		return nil, fmt.Errorf("looking for trials: %w", err)
	}
	for _, svc := range all.Items {
		if svc.Namespace != v1alpha1.SystemNamespace && strings.HasPrefix(svc.Name, trialPrefix) && services.WhyAddressless(&svc).Kind != "" {
			left = append(left, svc)
		}
	}
	return left, nil
}

func removeTrials(ctx context.Context, c client.Client, migration string) error {
	left, err := trialsLeft(ctx, c, migration)
	for i := range left {
		if err := removeCanary(ctx, c, &left[i]); err != nil {
			return err
		}
	}
	return err
}
