package exchange

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
	"github.com/replumb/replumb/internal/kube/taskpod"
)

// ReachStep has a pod that etcd is reached through run before anything is done by it, and looks how
// Services are stored: check cannot, without the pod.
func (s *Etcd) ReachStep(some []*corev1.Service) engine.Step {
	pod := s.Relay.Pod("")
	object := "Pod " + etcdrelay.Key().String()
	return engine.Interruptible{Write: &engine.Write{
		Name: "etcd/reach", About: "Reach etcd through a pod on a control plane", As: engine.RoleOwn, Limit: taskpod.Limit,
		Write: func(ctx context.Context) error {
			refused, err := s.Check(ctx, some)
			if err != nil || len(refused) == 0 {
				return err
			}
			return refusedInEtcd(refused)
		},
		Changes: engine.Shows(
			engine.Change{Verb: "create", Object: object + " (on a control plane whose API server is ready)", Body: pod},
			engine.Change{Verb: "delete", Object: object + " (as soon as the run ends)"},
		),
	}}
}

func refusedInEtcd(refused map[types.NamespacedName]error) error {
	keys := slices.SortedFunc(maps.Keys(refused), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	var texts []string
	for _, key := range keys {
		texts = append(texts, refused[key].Error())
	}
	return &fault.Hinted{
		Err:  fmt.Errorf("%s cannot be moved in etcd: %s", english.Plural(len(keys), "Service", ""), strings.Join(lists.Limit(texts, mostRefused), "; ")),
		Hint: "nothing has moved. Move them by another strategy: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
	}
}

// mostRefused are the Services that an error names.
const mostRefused = 5

// RemoveRelay removes the pod that a killed run has left.
func RemoveRelay(r *etcdrelay.Relay) engine.Step {
	object := "Pod " + etcdrelay.Key().String()
	return &engine.Write{
		Name: "tidy/etcd", About: "Remove the pod on a control plane that etcd is reached through", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			have, err := etcdrelay.Find(ctx, r.Cluster)
			if err == nil && have != nil {
				return engine.NotYet("%s is still there", object)
			}
			return err
		},
		Write:   func(ctx context.Context) error { return etcdrelay.End(ctx, r.Cluster, r.Migration) },
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: object}),
	}
}
