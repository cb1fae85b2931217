package rollout

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/readiness"
)

// quiet is how long a rollout may make no headway before someone asks why.
const quiet = 10 * time.Second

// await watches a workload until its rollout is complete or has stalled for a while, and returns
// what is missing. Polling would be most of the load of a large roll. A client without the right to
// watch polls.
func (s *restartStep) await(ctx context.Context, f *finding, outstanding error) error {
	c, ok := s.Client.(client.WithWatch)
	if !ok {
		return outstanding
	}
	w, err := c.Watch(ctx, f.list(), &client.ListOptions{
		Namespace: s.workload.Namespace, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, s.workload.Name),
		Raw: &metav1.ListOptions{ResourceVersion: f.object().GetResourceVersion()},
	})
	if err != nil {
		return outstanding
	}
	defer w.Stop()
	patience := min(quiet, s.timeout()/4)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return outstanding
		case <-timer.C:
			return outstanding
		case e, open := <-w.ResultChan():
			now := adapterOf(e.Object)
			if !open || now == nil || e.Type == watch.Deleted || now.object().GetUID() != s.workload.UID {
				return engine.NotYet("%w", outstanding) // whatever it is, the next look sees it
			}
			err := complete(now)
			if err == nil {
				return nil
			}
			if err.Error() != outstanding.Error() {
				outstanding = err
				timer.Reset(patience)
			}
		}
	}
}

// adapterOf is nil for what is no workload, such as a watch's error.
func adapterOf(o any) adapter {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return deploymentAdapter{o}
	case *appsv1.StatefulSet:
		return statefulSetAdapter{o}
	case *appsv1.DaemonSet:
		return daemonSetAdapter{o}
	}
	return nil
}

// explain adds what keeps a pod of the workload from starting, if that does not pass by itself.
func (s *restartStep) explain(ctx context.Context, f *finding, outstanding error) error {
	if err := s.lookAtPods(ctx, f); err != nil {
		return outstanding
	}
	for i := range f.pods {
		if why := readiness.Blocked(&f.pods[i]); why != "" {
			return engine.NotYet("%w; pod %s: %s", outstanding, f.pods[i].Name, why)
		}
	}
	return outstanding
}
