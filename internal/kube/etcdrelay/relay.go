// Package etcdrelay reaches the etcd of clusters that kubeadm made through a pod on a control
// plane: the certificate of a client never leaves it. docs/design/stored.md says what may go wrong.
package etcdrelay

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/readiness"
	"github.com/replumb/replumb/internal/kube/taskpod"
)

// Name is that of the pod, of which there is one: rights to it can be limited to it.
const Name = "etcd-relay"

// Verb is the value of taskpod.Label on the pod.
const Verb = "etcd"

// lifetime bounds how long a pod lasts that a killed run has left. A run that goes on makes another
// one.
const lifetime = time.Hour

// answerLimit has room for a process that is started in the pod.
const answerLimit = 15 * time.Second

// program is where the image of replumb has it. Pods that only pass arguments go by its entry
// point.
const program = "/replumb"

// Relay is a pod on one control plane of a cluster, while it is needed.
type Relay struct {
	Cluster   *cluster.Cluster
	Migration string
	Image     pull.Image

	// avoid is the node through which etcd did not answer last.
	avoid string
}

// Find has the pod of any migration; nil, if there is none.
func Find(ctx context.Context, from client.Reader) (*corev1.Pod, error) {
	all := &corev1.PodList{}
	err := from.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels{taskpod.Label: Verb})
	if err != nil {
		return nil, fmt.Errorf("looking for pod %s: %w", Name, err)
	}
	at := slices.IndexFunc(all.Items, func(p corev1.Pod) bool { return p.Name == Name })
	if at < 0 {
		return nil, nil
	}
	return &all.Items[at], nil
}

// Open connects to etcd through the pod. Without one that serves it makes one, and fails with an
// engine.NotYet until that runs.
func (r *Relay) Open(ctx context.Context) (*etcd.Client, error) {
	pod, err := r.serving(ctx)
	if err != nil {
		return nil, err
	}
	c, err := etcd.Open(ctx, etcd.Config{
		Endpoints: []string{"http://" + Local()[0]}, Timeout: answerLimit, Dial: r.dial(pod),
	})
	if err != nil {
		r.avoid = pod.Spec.NodeName
		return nil, engine.NotYet("%w", &fault.Hinted{
			Err:  fmt.Errorf("through pod %s on node %s: %w", pod.Name, pod.Spec.NodeName, err),
			Hint: "etcd has to run on that node as kubeadm makes it, and the user may create and get pods/exec of " + pod.Name + " in " + pod.Namespace,
		})
	}
	r.avoid = ""
	return c, nil
}

func (r *Relay) dial(pod *corev1.Pod) func(context.Context, string) (net.Conn, error) {
	key := client.ObjectKeyFromObject(pod)
	return func(ctx context.Context, _ string) (net.Conn, error) {
		return connect(ctx, func(ctx context.Context, s cluster.Streams) error {
			return r.Cluster.Exec(ctx, key, []string{program, "node", "etcd", "connect"}, s)
		})
	}
}

// serving is the pod, if it runs where it should.
func (r *Relay) serving(ctx context.Context) (*corev1.Pod, error) {
	have, err := Find(ctx, r.Cluster)
	if err != nil {
		return nil, err
	}
	nodes, err := readyControlPlanes(ctx, r.Cluster)
	if err != nil {
		return nil, err
	}
	node := choose(nodes, r.avoid)
	switch {
	case have == nil && node == "":
		return nil, engine.NotYet("no control plane is seen whose API server is ready")
	case have == nil:
		return nil, r.start(ctx, node)
	case !have.DeletionTimestamp.IsZero(), r.isStale(have, nodes):
		if err := end(ctx, r.Cluster, have); err != nil {
			return nil, err
		}
		return nil, engine.NotYet("the former pod %s on node %s is ending", have.Name, have.Spec.NodeName)
	case have.Status.Phase != corev1.PodRunning:
		why := readiness.Blocked(have)
		if why == "" {
			why = string(have.Status.Phase)
		}
		return nil, notRunning(have, why)
	}
	return have, nil
}

func notRunning(p *corev1.Pod, why string) error {
	return engine.NotYet("%w", &fault.Hinted{
		Err: fmt.Errorf("pod %s does not run on node %s yet: %s", p.Name, p.Spec.NodeName, why),
		Hint: fmt.Sprintf("kubectl describe pod -n %s %s; on the node have to be %s", p.Namespace, p.Name,
			strings.Join([]string{Files().CA, Files().Cert, Files().Key}, ", ")),
	})
}

func (r *Relay) start(ctx context.Context, node string) error {
	err := r.Cluster.Create(ctx, r.Pod(node), client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("pod %s on node %s: %w", Name, node, err)
	}
	return engine.NotYet("pod %s on node %s was just made", Name, node)
}

// isStale is whether a pod is another one than is wanted, has ended, or is on a node that is worse
// than another. Without a better one it stays: kubelets renew what the API shows of static pods
// within two minutes.
func (r *Relay) isStale(have *corev1.Pod, ready []string) bool {
	want := r.Pod(have.Spec.NodeName)
	better := choose(ready, r.avoid)
	serves := slices.Contains(ready, have.Spec.NodeName) && have.Spec.NodeName != r.avoid
	return have.Labels[v1alpha1.LabelMigration] != r.Migration || have.Spec.Containers[0].Image != want.Spec.Containers[0].Image ||
		have.Status.Phase == corev1.PodFailed || have.Status.Phase == corev1.PodSucceeded ||
		!serves && better != "" && better != have.Spec.NodeName
}

// choose prefers a node through which etcd answered.
func choose(ready []string, avoid string) string {
	for _, node := range ready {
		if node != avoid {
			return node
		}
	}
	if len(ready) > 0 {
		return ready[0]
	}
	return ""
}

// readyControlPlanes have an API server that runs from a file and is ready, as it is only with its
// etcd.
func readyControlPlanes(ctx context.Context, from client.Reader) (nodes []string, err error) {
	pods, err := controlplane.APIServer.Pods(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("listing the pods of API servers: %w", err)
	}
	for i := range pods {
		if ready, _ := readiness.Pod(&pods[i]); ready && controlplane.APIServer.IsStatic(&pods[i]) {
			nodes = append(nodes, pods[i].Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// End deletes the pod of a migration.
func End(ctx context.Context, c client.Client, migration string) error {
	have, err := Find(ctx, c)
	if err != nil || have == nil || have.Labels[v1alpha1.LabelMigration] != migration {
		return err
	}
	return end(ctx, c, have)
}

// end does not wait a second time: the node may be gone.
func end(ctx context.Context, c client.Client, p *corev1.Pod) error {
	grace := client.GracePeriodSeconds(1)
	if !p.DeletionTimestamp.IsZero() {
		grace = 0
	}
	err := c.Delete(ctx, p, grace, client.Preconditions{UID: ptr.To(p.UID)})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("ending pod %s: %w", p.Name, err)
	}
	return nil
}

// Pod on a node sleeps; each connection is a process that is begun in it. It listens nowhere.
func (r *Relay) Pod(node string) *corev1.Pod {
	c := corev1.Container{
		Name: "replumb", Image: r.Image.Name, Command: []string{program, "node", "etcd", "wait"}, SecurityContext: taskpod.RootWith(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	c.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
	spec := taskpod.Spec(r.Image, c)
	files := Files()
	for i, file := range []string{files.CA, files.Cert, files.Key} {
		name := []string{"ca", "certificate", "key"}[i]
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: file, Type: ptr.To(corev1.HostPathFile)},
		}})
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: file, ReadOnly: true})
	}
	spec.NodeName, spec.RestartPolicy = node, corev1.RestartPolicyNever
	spec.ActiveDeadlineSeconds = ptr.To(int64(lifetime.Seconds()))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, Name: Name,
			Labels: map[string]string{v1alpha1.LabelMigration: r.Migration, taskpod.Label: Verb},
		},
		Spec: spec,
	}
}

// Key is the pod's.
func Key() types.NamespacedName {
	return types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: Name}
}
