package kubeproxy

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
	"github.com/replumb/replumb/internal/network/servicetrial"
)

// fresh is a copy that a client may write to.
func fresh(o client.Object) client.Object {
	return o.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy is of the same type
}

// create makes an object that is replumb's own.
func (p *Planner) create(o client.Object, kind, id string) engine.Step {
	key := client.ObjectKeyFromObject(o)
	name := kind + " " + key.String()
	return &engine.Write{
		Name: id, About: "Create " + name,
		Holds: func(ctx context.Context) error {
			err := p.Tools.Cluster.Get(ctx, key, fresh(o))
			if apierrors.IsNotFound(err) {
				return engine.NotYet("%s is not there", name)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			err := p.Tools.Cluster.Create(ctx, fresh(o), client.FieldOwner(v1alpha1.FieldManager))
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) { return []engine.Change{{Verb: "create", Object: name, Body: o}}, nil },
	}
}

// remove deletes an object of replumb's, and waits until it is gone.
func (p *Planner) remove(o client.Object, kind, id string) engine.Step {
	key := client.ObjectKeyFromObject(o)
	name := kind + " " + key.String()
	return &engine.Write{
		Name: id, About: "Delete " + name,
		Holds: func(ctx context.Context) error {
			err := p.Tools.Cluster.Get(ctx, key, fresh(o))
			if err == nil {
				err = engine.NotYet("%s is still there", name)
			}
			return client.IgnoreNotFound(err)
		},
		Write: func(ctx context.Context) error {
			err := p.Tools.Cluster.Delete(ctx, fresh(o), client.PropagationPolicy(metav1.DeletePropagationForeground))
			return client.IgnoreNotFound(err)
		},
		Changes: func() ([]engine.Change, error) { return []engine.Change{{Verb: "delete", Object: name}}, nil },
	}
}

// mark says on a Node whose kube-proxy runs there; further are marks that a run before has got to.
func (p *Planner) mark(node, value, about string, further ...string) engine.Step {
	id := value
	if value == "" {
		id = "none"
	}
	return cordon.NodeMark{
		ID: "mark/" + id + "/" + node, About: about + " on node " + node, Node: node, Key: v1alpha1.LabelKubeProxyMode, Value: value,
		Further: func(have string) bool { return slices.Contains(further, have) },
	}.Step(p.Tools.Cluster)
}

// trial proves that the kube-proxy that is left on a node writes rules.
func (p *Planner) trial(node, prefix string, mode v1alpha1.KubeProxyMode) engine.Step {
	s := nodepod.New(p.Tools.Client(), p.spec().Name, p.Image, nodepod.VerbServices, node, prefix,
		"Verify that kube-proxy writes rules for a new Service on node "+node)
	ask := servicetrial.Programmed
	if mode == v1alpha1.KubeProxyIPVS {
		ask = servicetrial.ProgrammedInIPVS
	}
	return &servicetrial.Step{ReadOnly: nodepod.ReadOnly{Step: s}, Ask: ask}
}

// clean removes rules from a node that nobody writes any more.
func (p *Planner) clean(node, what, prefix, title string) engine.Step {
	s := nodepod.New(p.Tools.Client(), p.spec().Name, p.Image, nodepod.VerbClean, node, prefix, title+" from node "+node,
		what, "--root="+taskpod.HostRoot)
	s.Further = []engine.Change{{Verb: "clean", Object: "Node " + node, Body: map[string]any{"remove": traces(what).Describe()}}}
	return s
}

func (p *Planner) forgetCopy(node string) engine.Step {
	return p.clean(node, nodecleanup.CopiedRules, "forget", "Remove the copy of kube-proxy's rules")
}

func (p *Planner) cleanMode(node string, mode v1alpha1.KubeProxyMode) engine.Step {
	what := map[v1alpha1.KubeProxyMode]string{
		v1alpha1.KubeProxyIPTables: nodecleanup.ProxyIPTables, v1alpha1.KubeProxyNFTables: nodecleanup.ProxyNFTables,
	}[mode]
	return p.clean(node, what, "clean", "Remove what mode "+string(mode)+" has left")
}

// UnchangedNodeError is nodes that came while others were changed.
type UnchangedNodeError struct{ Pods []string }

func (e *UnchangedNodeError) Error() string {
	return "kube-proxy runs on a node that was not changed: pod " + e.Pods[0]
}

// nobody makes sure that no pod reads the configuration that is about to change: kube-proxy ends
// when its file changes (eventHandler in cmd/kube-proxy/app/options.go in k8s.io/kubernetes), and
// removes its rules when it starts in another mode.
func (p *Planner) nobody(own *appsv1.DaemonSet) engine.Step {
	return &engine.Wait{
		Name: "nobody", About: "Verify that no pod of " + daemonset.Name(own) + " is left", Limit: taskpod.Limit,
		For: func(ctx context.Context) error {
			pods, err := daemonset.Pods(ctx, p.Tools.Cluster, *own)
			if err != nil {
				return err
			}
			var joined []string
			for i := range pods {
				if pods[i].DeletionTimestamp.IsZero() {
					joined = append(joined, pods[i].Namespace+"/"+pods[i].Name)
				}
			}
			if len(joined) > 0 {
				return &UnchangedNodeError{joined}
			}
			if len(pods) > 0 {
				return engine.NotYet("pod %s/%s has not ended", pods[0].Namespace, pods[0].Name)
			}
			return nil
		},
	}
}

// configure writes the mode into the configuration of the cluster's own DaemonSet.
func (p *Planner) configure(mode v1alpha1.KubeProxyMode, configures string) engine.Step {
	s := p.Inventory
	if s.At.configMap == "" {
		return p.configureFlag(mode, configures)
	}
	key := client.ObjectKeyFromObject(s.Config)
	name := "ConfigMap " + key.String()
	read := func(ctx context.Context) (*corev1.ConfigMap, error) {
		cm := &corev1.ConfigMap{}
		if err := p.Tools.Cluster.Get(ctx, key, cm); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		have, err := configuredIn(cm.Data[s.At.key])
		if err == nil && modeOf(have) != mode {
			err = engine.NotYet("%s names mode %q", name, have)
		}
		return cm, err
	}
	change := func(cm *corev1.ConfigMap) error {
		text, err := withMode(cm.Data[s.At.key], configures)
		cm.Data[s.At.key] = text
		return err
	}
	return &engine.Observed[*corev1.ConfigMap]{
		Name: "configure/" + key.String(), About: fmt.Sprintf("Set mode %s in %s", mode, name), Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, cm *corev1.ConfigMap) error {
			was := cm.DeepCopy()
			if err := change(cm); err != nil {
				return err
			}
			patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
			return p.Tools.Cluster.Patch(ctx, cm, patch, client.FieldOwner(v1alpha1.FieldManager))
		},
		Changes: func() ([]engine.Change, error) {
			cm := s.Config.DeepCopy()
			err := change(cm)
			return []engine.Change{{Verb: "patch", Object: name, Body: map[string]any{"data": map[string]any{s.At.key: cm.Data[s.At.key]}}}}, err
		},
	}
}

// configureFlag does so where flags have the mode.
func (p *Planner) configureFlag(mode v1alpha1.KubeProxyMode, configures string) engine.Step {
	own := p.Inventory.own()
	key := client.ObjectKeyFromObject(own)
	if configures == "" {
		configures = string(mode)
	}
	read := func(ctx context.Context) (*appsv1.DaemonSet, error) {
		ds, err := daemonset.Find(ctx, p.Tools.Cluster, key)
		if err != nil || ds == nil {
			return ds, err
		}
		c := proxyIn(&ds.Spec.Template.Spec)
		if have, _ := flagOf(slices.Concat(c.Command, c.Args), modeFlag); modeOf(have) != mode {
			err = engine.NotYet("%s names mode %q", daemonset.Name(ds), have)
		}
		return ds, err
	}
	return &engine.Observed[*appsv1.DaemonSet]{
		Name: "configure/" + key.String(), About: fmt.Sprintf("Set mode %s in %s", mode, daemonset.Name(own)),
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, ds *appsv1.DaemonSet) error {
			was := ds.DeepCopy()
			setFlag(proxyIn(&ds.Spec.Template.Spec), configures)
			patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
			return p.Tools.Cluster.Patch(ctx, ds, patch, client.FieldOwner(v1alpha1.FieldManager))
		},
		Changes: func() ([]engine.Change, error) {
			c := proxyIn(&own.DeepCopy().Spec.Template.Spec)
			setFlag(c, configures)
			body := map[string]any{"command": c.Command, "args": c.Args}
			return []engine.Change{{Verb: "patch", Object: daemonset.Name(own), Body: body}}, nil
		},
	}
}

// record writes down which mode kube-proxy had.
func (p *Planner) record() engine.Step {
	st := v1alpha1.KubeProxyStatus{From: p.Inventory.mode(), Configured: p.Inventory.Configured}
	return &engine.Write{
		Name: "secure/mode", About: "Record the mode of kube-proxy", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			m, err := migration.Get(ctx, p.Tools.Cluster, p.spec().Name)
			if err == nil && (m == nil || m.Status.KubeProxy == nil) {
				return engine.NotYet("status.kubeProxy of migration %s is not written yet", p.spec().Name)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			return migration.UpdateStatus(ctx, p.Tools.Cluster, p.spec().Name, func(s *v1alpha1.MigrationStatus) { s.KubeProxy = &st })
		},
		Changes: migration.StatusChange(p.spec().Name, map[string]any{"kubeProxy": map[string]any{"from": st.From, "configured": st.Configured}}),
	}
}

// forget removes that record, so that the migration may begin again.
func (p *Planner) forget() engine.Step {
	return &engine.Write{
		Name: "forget/mode", About: "Forget which mode kube-proxy had", As: engine.RoleOwn,
		Write: func(ctx context.Context) error {
			err := migration.UpdateStatus(ctx, p.Tools.Cluster, p.spec().Name, func(s *v1alpha1.MigrationStatus) { s.KubeProxy = nil })
			return client.IgnoreNotFound(err)
		},
		Changes: migration.StatusChange(p.spec().Name, map[string]any{"kubeProxy": nil}),
	}
}
