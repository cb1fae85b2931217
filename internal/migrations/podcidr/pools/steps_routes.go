package pools

import (
	"context"
	"fmt"
	"net/netip"
	"path"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
)

const (
	// routesLabel says where tunnels go, keptOld or keptNew.
	routesLabel = "replumb.dev/ferry"
	// tunnelsFolder has a file for each node, with the address of its tunnel.
	tunnelsFolder = "/etc/replumb/tunnels"
	// routesGrace is how long Felix may take to set its own routes; tunneladdr waits a minute.
	routesGrace = 90
)

// temporaryRoutes carry packets while tunnels change: a DaemonSet and a ConfigMap of addresses.
type temporaryRoutes struct {
	cluster   *cluster.Cluster
	migration string
	image     pull.Image
	// which is keptOld or keptNew: where tunnels go.
	which    string
	from, to []netip.Prefix
}

func (r *temporaryRoutes) name() string { return r.migration + "-" + r.which + "-ferry" }

func (r *temporaryRoutes) labels() client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: r.migration, routesLabel: r.which}
}

// steps gives tunnels their next addresses, and starts the routes on every node.
func (r *temporaryRoutes) steps() []engine.Step {
	return []engine.Step{r.assign(), r.list(), r.start()}
}

// onOldTunnel are the nodes whose VXLAN tunnel has a left address, and the next addresses.
func (r *temporaryRoutes) onOldTunnel(ctx context.Context) (*calico.State, []corev1.Node, map[string]netip.Addr, error) {
	state, err := calico.Load(ctx, r.cluster)
	if err != nil {
		return nil, nil, nil, err
	}
	nodes, err := podmove.Nodes(ctx, r.cluster)
	if err != nil {
		return nil, nil, nil, err
	}
	given := state.Tunnels(r.to)
	var waiting []corev1.Node
	for i := range nodes {
		n := &nodes[i]
		if at, tunneled := calico.TunnelAddresses(n)[calico.VXLANTunnel]; tunneled && podmove.Within(r.from, at) {
			waiting = append(waiting, *n)
		}
	}
	return state, waiting, given, nil
}

// unassigned are the nodes without a next address that have a block. Calico finds one for others.
type unassigned struct {
	state *calico.State
	nodes []freeAddress
}

// unassigned fails as long as there are any.
func (r *temporaryRoutes) unassigned(ctx context.Context) (u unassigned, err error) {
	state, waiting, given, err := r.onOldTunnel(ctx)
	if err != nil {
		return u, err
	}
	spared, err := calico.Reserved(ctx, r.cluster)
	if err != nil {
		return u, err
	}
	u.state = state
	for i := range waiting {
		name := waiting[i].Name
		if given[name].IsValid() {
			continue
		}
		block, at, err := state.Room(name, r.to, spared)
		if err != nil {
			return u, err
		}
		if block != nil {
			u.nodes = append(u.nodes, freeAddress{name, block, at})
		}
	}
	if len(u.nodes) > 0 {
		return u, engine.NotYet("the tunnel of node %s has no address of %v", u.nodes[0].node, r.to)
	}
	return u, nil
}

type freeAddress struct {
	node  string
	block *calico.Block
	at    netip.Addr
}

func (r *temporaryRoutes) assign() engine.Step {
	return &engine.Observed[unassigned]{
		Name: "hold/assign", About: fmt.Sprintf("Have Calico give each tunnel an address of %v", r.to),
		Look: engine.LookOf(r.unassigned), Proof: engine.ProofOf(r.unassigned),
		Write: func(ctx context.Context, u unassigned) error {
			for _, free := range u.nodes {
				err := calico.AssignTunnel(ctx, r.cluster, u.state, free.block, free.at, free.node)
				if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
					return engine.NotYet("an address was given to something else meanwhile: %w", err)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "IPAMHandle *, of tunnels"},
			engine.Change{Verb: "patch", Object: fmt.Sprintf("IPAMBlock * of %v, one of each node", r.to)},
		),
	}
}

// list writes down which address each tunnel gets.
func (r *temporaryRoutes) list() *engine.Write {
	key := client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: r.name()}
	return &engine.Write{
		Name: "hold/addresses", About: "Record the address of each tunnel", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			all := &corev1.ConfigMapList{}
			if err := r.cluster.List(ctx, all, client.InNamespace(key.Namespace), r.labels()); err != nil {
				return fmt.Errorf("listing configmaps: %w", err)
			}
			if len(all.Items) == 0 {
				return engine.NotYet("configmap %s does not exist", key)
			}
			return nil
		},
		Write: func(ctx context.Context) error {
			_, _, given, err := r.onOldTunnel(ctx)
			if err != nil {
				return err
			}
			err = r.cluster.Create(ctx, r.addresses(given), client.FieldOwner(v1alpha1.FieldManager))
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("configmap %s: %w", key, err)
			}
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "create", Object: "ConfigMap " + key.String()}),
	}
}

func (r *temporaryRoutes) addresses(given map[string]netip.Addr) *corev1.ConfigMap {
	m := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: r.name(), Labels: r.labels()},
		Data:       map[string]string{},
	}
	for node, at := range given {
		m.Data[node] = at.String()
	}
	return m
}

func (r *temporaryRoutes) start() *engine.Write {
	return createOnNodes(r.cluster, "hold/ferry", "Keep packets between nodes flowing while tunnels change", r.build())
}

// build makes a DaemonSet whose pods are ready with the routes, and remove them at their end.
func (r *temporaryRoutes) build() *appsv1.DaemonSet {
	d := onNodes(r.name(), r.labels(), r.image, r.container("board"), r.container("ferry"))
	pod := &d.Spec.Template.Spec
	pod.TerminationGracePeriodSeconds = ptr.To[int64](routesGrace)
	pod.Volumes = []corev1.Volume{{Name: "tunnels", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: r.name()},
	}}}}
	return d
}

func (r *temporaryRoutes) container(name string) corev1.Container {
	c := podmove.NetAdmin(name, r.image, []string{"tunnels", name, path.Join(tunnelsFolder, "$(NODE_NAME)")})
	c.Env = []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"},
	}}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "tunnels", MountPath: tunnelsFolder, ReadOnly: true}}
	return c
}

// move gives the tunnels of nodes the addresses that are theirs. Felix restarts with it.
func (r *temporaryRoutes) move() engine.Step {
	type waiting struct {
		nodes []corev1.Node
		given map[string]netip.Addr
	}
	read := func(ctx context.Context) (w waiting, err error) {
		_, nodes, given, err := r.onOldTunnel(ctx)
		w.given = given
		for i := range nodes {
			if given[nodes[i].Name].IsValid() {
				w.nodes = append(w.nodes, nodes[i])
			}
		}
		if err == nil && len(w.nodes) > 0 {
			name := w.nodes[0].Name
			err = engine.NotYet("the tunnel of node %s does not have address %s", name, given[name])
		}
		return w, err
	}
	return &engine.Observed[waiting]{
		Name: "tunnels/move", About: fmt.Sprintf("Assign addresses of %v to tunnels", r.to),
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, w waiting) error {
			for i := range w.nodes {
				err := calico.MoveTunnel(ctx, r.cluster, &w.nodes[i], w.given[w.nodes[i].Name])
				if apierrors.IsConflict(err) {
					return engine.NotYet("%w", err)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: "Node *, its annotation " + calico.VXLANTunnel}),
	}
}

// remove ends temporary routes of both ways. Each pod ends once Felix has set all routes.
func (r *temporaryRoutes) remove(id string) *engine.Write {
	ours := []client.ListOption{
		client.InNamespace(v1alpha1.SystemNamespace),
		client.HasLabels{routesLabel},
		client.MatchingLabels{v1alpha1.LabelMigration: r.migration},
	}
	names := func() []string {
		there, back := *r, *r
		there.which, back.which = keptNew, keptOld
		return []string{there.name(), back.name()}
	}
	return &engine.Write{
		Name: id, About: "Verify Calico's routes by tunnels, and remove the temporary ones",
		Limit: keeperDeadline, As: engine.RoleOwn,
		Holds: func(ctx context.Context) error { return noneLeft(ctx, r.cluster, ours) },
		Write: func(ctx context.Context) error {
			for _, name := range names() {
				at := metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: name}
				for _, o := range []client.Object{&corev1.ConfigMap{ObjectMeta: at}, &appsv1.DaemonSet{ObjectMeta: at}} {
					err := r.cluster.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationForeground))
					if client.IgnoreNotFound(err) != nil {
						return fmt.Errorf("%s: %w", name, err)
					}
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			var all []engine.Change
			for _, name := range names() {
				all = append(all,
					engine.Change{Verb: "delete", Object: "ConfigMap " + v1alpha1.SystemNamespace + "/" + name},
					engine.Change{Verb: "delete", Object: "DaemonSet " + v1alpha1.SystemNamespace + "/" + name})
			}
			return all, nil
		},
	}
}
