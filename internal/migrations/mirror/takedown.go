package mirror

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// listTakedown lists what there is of the mirror, and deletes nothing.
func listTakedown(name string, target *side) engine.Step {
	var list string
	return &engine.Wait{
		Name: "takedown", About: "List what may be taken down", Again: true, Remark: func() string { return list },
		For: func(ctx context.Context) error {
			counts, err := target.copies(ctx, name)
			if err != nil {
				return err
			}
			namespaces := &corev1.NamespaceList{}
			if err := target.List(ctx, namespaces, client.MatchingLabels{v1alpha1.LabelMirror: name}); err != nil {
				return fmt.Errorf("namespaces of the target: %w", err)
			}
			var names []string
			for i := range namespaces.Items {
				names = append(names, namespaces.Items[i].Name)
			}
			list = takedown(name, counts, names)
			return nil
		},
	}
}

// notTakenDown says what is not known of a target that is not asked.
func notTakenDown() engine.Step {
	return &engine.Wait{
		Name: "takedown", About: "Say what is not known of the target", Again: true,
		Remark: func() string {
			return "the target was not asked: its copies, and what runs of them, are still there if it is; see that it does not come back " +
				"as it was, with the same workloads"
		},
		For: func(context.Context) error { return nil },
	}
}

func takedown(migration string, counts map[string]int, namespaces []string) string {
	var kinds []string
	total := 0
	for _, resource := range slices.Sorted(maps.Keys(counts)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", counts[resource], resource))
		total += counts[resource]
	}
	if total == 0 {
		return "the target has no copies"
	}
	text := fmt.Sprintf("the target has %s (%s), each labelled %s=%s", english.Plural(total, "copy", "copies"), strings.Join(kinds, ", "),
		v1alpha1.LabelMirror, migration)
	if len(namespaces) > 0 {
		text += "; most go with namespaces: kubectl delete namespace " + strings.Join(namespaces, " ")
	}
	return text + "; the load balancer, registry, roles and machines of the mirror are yours to end"
}

func (s *side) copies(ctx context.Context, migration string) (map[string]int, error) {
	resources, err := s.resources()
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(s.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	counts := map[string]int{}
	for _, gvr := range resources {
		o := metav1.ListOptions{LabelSelector: v1alpha1.LabelMirror + "=" + migration}
		for {
			list, err := meta.Resource(gvr).List(ctx, o)
			if err != nil {
				break // what cannot be listed was not copied either
			}
			for i := range list.Items {
				if list.Items[i].Annotations[v1alpha1.AnnotationCopied] != "" { // controllers hand labels on
					counts[gvr.GroupResource().String()]++
				}
			}
			if o.Continue = list.Continue; o.Continue == "" {
				break
			}
		}
	}
	return counts, nil
}
