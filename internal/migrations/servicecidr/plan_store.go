package servicecidr

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/safety/lease"
)

// relay is the pod that etcd is reached through, whether it is there or not.
func (j *Job) relay() *etcdrelay.Relay {
	return &etcdrelay.Relay{Cluster: j.Deps.Cluster, Migration: j.Spec.Name, Image: j.image()}
}

func (j *Job) store() exchange.Store {
	if j.Spec.Store == nil {
		return nil
	}
	if j.Deps.Store != nil {
		return j.Deps.Store
	}
	if j.etcd == nil || j.etcd.Spec != j.Spec.Store {
		j.etcd = &exchange.Etcd{Spec: j.Spec.Store, Client: j.Deps.Client()}
		if j.Spec.Store.Source == v1alpha1.SourceKubeadm {
			j.etcd.Relay = j.relay()
		}
	}
	return j.etcd
}

// addStore knows the pod that an earlier run may have left.
func (j *Job) addStore(ctx context.Context, p *Planner) error {
	p.setStore(j.store())
	if left, err := j.relayed(ctx); left == nil {
		return err
	}
	p.RelayLeft = exchange.RemoveRelay(j.relay())
	return nil
}

// relayed is the migration's own pod; nil, if there is none, or the user may not look.
func (j *Job) relayed(ctx context.Context) (*corev1.Pod, error) {
	if j.Spec.Store == nil {
		return nil, nil
	}
	pod, err := etcdrelay.Find(ctx, j.Deps.Cluster)
	if err != nil || pod == nil || pod.Labels[v1alpha1.LabelMigration] != j.Spec.Name {
		return nil, access.UnlessForbidden(err)
	}
	return pod, nil
}

func (p *Planner) setStore(s exchange.Store) {
	p.Store = s
	if e, is := s.(*exchange.Etcd); is && e.Relay != nil {
		p.Relayed = e
	}
}

// RelayStatus is where the pod is, and whether a run is there that deletes it.
type RelayStatus struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
	Left bool   `json:"left,omitempty"`
}

func (j *Job) relayStatus(ctx context.Context) (*RelayStatus, error) {
	pod, err := j.relayed(ctx)
	if err != nil || pod == nil {
		return nil, err
	}
	holder, err := lease.Current(ctx, j.Deps.Cluster)
	return &RelayStatus{Pod: etcdrelay.Key().String(), Node: pod.Spec.NodeName, Left: err == nil && holder == nil}, nil
}

func (r *RelayStatus) lines() []string {
	switch {
	case r == nil:
		return nil
	case r.Left:
		return []string{fmt.Sprintf("warning: pod %s on node %s, which connects to etcd, is left of a run that was killed; the next run takes it away, or kubectl delete pod -n %s %s",
			r.Pod, r.Node, etcdrelay.Key().Namespace, etcdrelay.Name)}
	}
	return []string{fmt.Sprintf("etcd: pod %s on node %s connects to it, until the run ends", r.Pod, r.Node)}
}

// reach has etcd answer through a pod before anything is done by it.
func (p *Planner) reach(all []*services.Entry) []engine.Step {
	var some []*corev1.Service
	for _, e := range all {
		if e.Strategy == v1alpha1.StrategyOfEtcd {
			some = append(some, e.Service)
		}
	}
	if p.Relayed == nil || len(some) == 0 {
		return nil
	}
	return []engine.Step{p.Relayed.ReachStep(some)}
}

// leaveLimit bounds how long a run that ends waits for the pod to be deleted.
const leaveLimit = 10 * time.Second

// leaveEtcd deletes the pod at the end of a run. One that it cannot delete is named by status.
func (p *Planner) leaveEtcd(ctx context.Context) error {
	if p.Relayed == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	if err := p.Relayed.Close(ctx); err != nil {
		return fmt.Errorf("pod %s stays: %w", etcdrelay.Key(), err)
	}
	return nil
}
