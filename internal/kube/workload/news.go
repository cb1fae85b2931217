package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// News is, by name, the latest event of every pod in replumb's namespace, and the latest warning of
// every object that makes them. It is empty for users who may not read events.
func News(ctx context.Context, c client.Client, makes func(*corev1.ObjectReference) bool) (map[string]string, error) {
	all := &corev1.EventList{}
	err := c.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace))
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	slices.SortStableFunc(all.Items, func(a, b corev1.Event) int { return when(&a).Compare(when(&b)) })
	latest := map[string]string{}
	for i := range all.Items {
		e := &all.Items[i]
		if e.InvolvedObject.Kind == "Pod" || e.Type == corev1.EventTypeWarning && makes(&e.InvolvedObject) {
			latest[e.InvolvedObject.Name] = strings.TrimSpace(strings.TrimPrefix(e.Message, "(combined from similar events): "))
		}
	}
	return latest, nil
}

// Named selects what makes pods by the beginning of its name.
func Named(prefix string) func(*corev1.ObjectReference) bool {
	return func(of *corev1.ObjectReference) bool { return strings.HasPrefix(of.Name, prefix) }
}

// when an event was last seen, by whichever of its fields its writer uses.
func when(e *corev1.Event) time.Time {
	t := e.CreationTimestamp.Time
	for _, other := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if other.After(t) {
			t = other
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(t) {
		t = e.Series.LastObservedTime.Time
	}
	return t
}
