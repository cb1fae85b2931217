// Package inventory reads what runs in a cluster beside replumb, as far as it concerns its network,
// and the Snapshot that plans and checks are made from.
package inventory

import (
	"context"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/references"
)

// scans bounds how many collections are read at once, since each holds a page in memory.
const scans = 4

// Pages of large objects are shorter: a ConfigMap may have 1 MiB.
const (
	configMapPage = 100
	secretPage    = 25
	crdPage       = 25
)

// Scan holds findings in objects that are too many or too large to be kept.
type Scan struct {
	// Kubeadm says that kubeadm has made the control plane.
	Kubeadm      bool
	ControlPlane ControlPlane
	References   []references.Reference
	Proxies      []Proxy
	Replacements []Replacement
	Planes       []DataPlane
	CiliumModes  []CiliumMode
	Meshes       []*Mesh
	NodeLocal    []NodeLocal
	// Abrupt are the ConfigMaps, by namespace, with a Corefile whose servers of cluster names end
	// at once, without lameduck of plugin health.
	Abrupt map[string]string
	// InTarget are pods with an address in the range that the Services move to.
	InTarget []PodAddress
	Stuck    []StuckBudget
	Policies []Policy
	// Called has an entry for each object that names the Service.
	Called []Called
	// IngressClasses are controllers by the name of the class.
	IngressClasses map[string]string
	Routes         []Route
	// Published names, by Service, the workload that publishes its external addresses as its own:
	// in the status of Ingresses, from where DNS records are made.
	Published map[types.NamespacedName]string
	// Pools and Advertisers are complete once Neighbours has run.
	Pools       []Pool
	Advertisers []Advertiser
	// Egress are the namespaces whose NetworkPolicies limit the calls of pods.
	Egress     map[string]bool
	Migrations []v1alpha1.Migration
	// Unread are the resources that the user may not read.
	Unread map[string]bool
	// Unsearched says why custom resources that replumb does not know were not looked through.
	Unsearched map[string]string

	calico bool
	// defined are the versions to ask for by the names of CustomResourceDefinitions.
	defined map[string]string
}

// PodAddress is the address of a Pod, as namespace/name.
type PodAddress struct {
	Pod     string
	Address netip.Addr
}

// StuckBudget is a PodDisruptionBudget, as namespace/name, and its rule that never lets a pod go.
type StuckBudget struct {
	Name string
	Rule string
}

// Policy is a ValidatingAdmissionPolicy that a migration left or keeps.
type Policy struct {
	Name, Migration string
}

// References looks through all objects that may name an old address or otherwise stand in the way
// of a migration. Resources that the user may not list are in Unread.
func References(ctx context.Context, c *cluster.Cluster, scanner *references.Scanner) (*Scan, error) {
	found := &Scan{Unread: map[string]bool{}}
	var mu sync.Mutex
	eg, ectx := errgroup.WithContext(ctx)
	eg.SetLimit(scans)
	for _, src := range sources() {
		eg.Go(func() error {
			err := cluster.EachPage(ectx, c, src.list, src.page, func(o client.Object) {
				mu.Lock()
				defer mu.Unlock()
				found.Take(scanner, o)
			}, src.opts...)
			mu.Lock()
			defer mu.Unlock()
			return found.noteUnread(src.resource, err)
		})
	}
	if err := eg.Wait(); err != nil {
		return nil, err
	}
	if err := felix(ctx, c, found); err != nil {
		return nil, err
	}
	if err := secrets(ctx, c, scanner, found); err != nil {
		return nil, err
	}
	err := eachCustom(ctx, c, slices.Concat(policyKinds(), settingKinds()), found, func(o *unstructured.Unstructured) {
		found.Take(scanner, o)
	})
	if err != nil {
		return nil, err
	}
	if err := search(ctx, c, scanner, found); err != nil {
		return nil, err
	}
	found.sort()
	return found, nil
}

// ReferenceRights are for References, beside the rights to list Services, EndpointSlices,
// ConfigMaps, pods, workloads, budgets and Migrations. Secrets are left out: they are read only
// where another role gives the right.
func ReferenceRights() []access.Right {
	return slices.Concat(
		access.Grant("", "persistentvolumes", "", "list"),
		access.Grant("batch", "cronjobs", "", "list"),
		access.Grant("networking.k8s.io", "networkpolicies", "", "list"),
		access.Grant("networking.k8s.io", "ingressclasses", "", "list"),
		access.Grant("networking.k8s.io", "ingresses", "", "list"),
		WebhookRights(),
		access.Grant("apiregistration.k8s.io", "apiservices", "", "list"),
		access.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "list"),
		access.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "list"),
		access.Named(access.Grant(cluster.CalicoGroup, "felixconfigurations", "", "get"), "default"),
		listRights(policyKinds()),
		listRights(settingKinds()),
	)
}

func felix(ctx context.Context, c *cluster.Cluster, found *Scan) error {
	if !found.calico && !found.Unread["customresourcedefinitions"] {
		return nil
	}
	body, err := c.GetRaw(ctx, "/apis/crd.projectcalico.org/v1/felixconfigurations/default")
	if err != nil {
		return found.noteUnread("felixconfigurations", err)
	}
	return found.TakeFelix(body)
}

// secrets asks for the right first, since a refused request would stand in the audit log. It leaves
// out certificates, tokens and Helm's releases, which are compressed.
func secrets(ctx context.Context, c *cluster.Cluster, scanner *references.Scanner, found *Scan) error {
	answers, err := c.Access(ctx, access.Grant("", "secrets", "", "list"))
	if err != nil {
		return found.noteUnread("secrets", err)
	}
	if !answers[0].Allowed {
		found.Unread["secrets"] = true
		return nil
	}
	var wanted []fields.Selector
	for _, skipped := range []corev1.SecretType{
		corev1.SecretTypeTLS, corev1.SecretTypeServiceAccountToken, corev1.SecretTypeBootstrapToken, "helm.sh/release.v1",
	} {
		wanted = append(wanted, fields.OneTermNotEqualSelector("type", string(skipped)))
	}
	err = cluster.EachPage(ctx, c, &corev1.SecretList{}, secretPage, func(o client.Object) { found.Take(scanner, o) },
		client.MatchingFieldsSelector{Selector: fields.AndSelectors(wanted...)})
	return found.noteUnread("secrets", err)
}

// noteUnread drops the error of a resource that is not served or that the user may not read.
func (i *Scan) noteUnread(resource string, err error) error {
	switch {
	case err == nil, apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil
	case apierrors.IsForbidden(err):
		i.Unread[resource] = true
		return nil
	}
	return err
}

type source struct {
	resource string
	list     client.ObjectList
	page     int64
	opts     []client.ListOption
}

func sources() []source {
	return []source{
		{resource: "configmaps", list: &corev1.ConfigMapList{}, page: configMapPage},
		{resource: "pods", list: &corev1.PodList{}, page: cluster.PageSize},
		{resource: "customresourcedefinitions", list: &apiextensionsv1.CustomResourceDefinitionList{}, page: crdPage},
		{resource: "persistentvolumes", list: &corev1.PersistentVolumeList{}, page: cluster.PageSize},
		{resource: "deployments", list: &appsv1.DeploymentList{}, page: cluster.PageSize},
		{resource: "statefulsets", list: &appsv1.StatefulSetList{}, page: cluster.PageSize},
		{resource: "daemonsets", list: &appsv1.DaemonSetList{}, page: cluster.PageSize},
		{resource: "jobs", list: &batchv1.JobList{}, page: cluster.PageSize},
		{resource: "cronjobs", list: &batchv1.CronJobList{}, page: cluster.PageSize},
		{resource: "networkpolicies", list: &networkingv1.NetworkPolicyList{}, page: cluster.PageSize},
		{resource: "services", list: &corev1.ServiceList{}, page: cluster.PageSize},
		{resource: "ingresses", list: &networkingv1.IngressList{}, page: cluster.PageSize},
		{resource: "endpointslices", list: &discoveryv1.EndpointSliceList{}, page: cluster.PageSize, opts: []client.ListOption{handMade()}},
		{resource: "ingressclasses", list: &networkingv1.IngressClassList{}, page: cluster.PageSize},
		{resource: "poddisruptionbudgets", list: &policyv1.PodDisruptionBudgetList{}, page: cluster.PageSize},
		{resource: "validatingwebhookconfigurations", list: &admissionv1.ValidatingWebhookConfigurationList{}, page: cluster.PageSize},
		{resource: "mutatingwebhookconfigurations", list: &admissionv1.MutatingWebhookConfigurationList{}, page: cluster.PageSize},
		{resource: "apiservices", list: apiServices(), page: cluster.PageSize},
		{
			resource: "validatingadmissionpolicies", list: &admissionv1.ValidatingAdmissionPolicyList{}, page: cluster.PageSize,
			opts: []client.ListOption{client.HasLabels{v1alpha1.LabelMigration}},
		},
		{resource: "migrations", list: &v1alpha1.MigrationList{}, page: cluster.PageSize},
	}
}

// handMade selects the EndpointSlices that no controller makes from pods.
func handMade() client.MatchingLabelsSelector {
	made, err := labels.NewRequirement(discoveryv1.LabelManagedBy, selection.NotIn, []string{fromPods})
	if err != nil {
		panic(err) // both are constants
	}
	return client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*made)}
}

// fromPods is the controllerName of k8s.io/kubernetes pkg/controller/endpointslice.
const fromPods = "endpointslice-controller.k8s.io"

// HasCalico reports whether the cluster has Calico's definitions.
func (i *Scan) HasCalico() bool { return i.calico }

// Take keeps nothing of an object but its findings.
func (i *Scan) Take(scanner *references.Scanner, o client.Object) {
	i.Called = append(i.Called, servicesCalledFor(o)...)
	i.Kubeadm = i.Kubeadm || ByKubeadm(o)
	i.takeMesh(o)
	if u, custom := o.(*unstructured.Unstructured); custom { // or an APIService
		i.takeCustom(scanner, u)
		return
	}
	if i.takeWhole(o) {
		return
	}
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		i.takeEgress(o)
	case *networkingv1.Ingress:
		i.takeIngress(o)
	case *apiextensionsv1.CustomResourceDefinition:
		i.define(o)
		i.calico = i.calico || o.Name == "felixconfigurations.crd.projectcalico.org"
	case *corev1.ConfigMap:
		i.takeConfigMap(o)
		i.ControlPlane.takeConfigMap(o)
	case *corev1.Pod:
		i.takeAddresses(scanner, o)
		i.ControlPlane.takePod(o)
	}
	if madeByReplumb(o) || endedOrFromTemplate(o) {
		return
	}
	i.References = append(i.References, scanner.Find(withoutGateFlags(o))...)
	i.takeAdvertisers(o)
	if object, spec := template(o); spec != nil {
		i.takeWorkload(object, spec)
		i.takePlanes(object, spec)
	}
}

// withoutGateFlags leaves out what API servers, controller managers and kube-proxies have in flags
// that take one range of a family: gates and other checks say when those change, and with two such
// ranges the programs do not start.
func withoutGateFlags(o client.Object) client.Object {
	if o.GetNamespace() != metav1.NamespaceSystem {
		return o
	}
	var spec *corev1.PodSpec
	switch was := o.(type) {
	case *corev1.Pod:
		copied := was.DeepCopy()
		o, spec = copied, &copied.Spec
	case *appsv1.DaemonSet:
		copied := was.DeepCopy()
		o, spec = copied, &copied.Spec.Template.Spec
	default:
		return o
	}
	for n := range spec.Containers {
		c := &spec.Containers[n]
		if words := commandLine(c); runs(words, "kube-apiserver") || runs(words, "kube-controller-manager") || runs(words, "kube-proxy") {
			c.Command, c.Args = withoutRanges(c.Command), withoutRanges(c.Args)
		}
	}
	return o
}

// withoutRanges empties the words of these flags, and a value that is a word of its own. Positions
// stay, since findings name them.
func withoutRanges(words []string) []string {
	for k, word := range words {
		name, _, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if name != "service-cluster-ip-range" && name != "cluster-cidr" {
			continue
		}
		if words[k] = ""; !joined && k+1 < len(words) {
			words[k+1] = ""
		}
	}
	return words
}

// takeWhole reports whether an object is of a kind that names no address, and takes it if so.
func (i *Scan) takeWhole(o client.Object) bool {
	switch o := o.(type) {
	case *v1alpha1.Migration:
		i.Migrations = append(i.Migrations, v1alpha1.Migration{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name}, Status: v1alpha1.MigrationStatus{Phase: o.Status.Phase},
		})
	case *admissionv1.ValidatingAdmissionPolicy:
		if owner := o.Labels[v1alpha1.LabelMigration]; owner != "" {
			i.Policies = append(i.Policies, Policy{Name: o.Name, Migration: owner})
		}
	case *policyv1.PodDisruptionBudget:
		if rule := NeverAllows(o); rule != "" {
			i.Stuck = append(i.Stuck, StuckBudget{Name: o.Namespace + "/" + o.Name, Rule: rule})
		}
	case *networkingv1.IngressClass:
		if i.IngressClasses == nil {
			i.IngressClasses = map[string]string{}
		}
		i.IngressClasses[o.Name] = o.Spec.Controller
	default:
		return false
	}
	return true
}

// takeEgress follows PolicyTypes in k8s.io/api networking/v1: without any, rules for egress count.
func (i *Scan) takeEgress(o *networkingv1.NetworkPolicy) {
	about := slices.Contains(o.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) || len(o.Spec.PolicyTypes) == 0 && len(o.Spec.Egress) > 0
	if !about {
		return
	}
	if i.Egress == nil {
		i.Egress = map[string]bool{}
	}
	i.Egress[o.Namespace] = true
}

// madeByReplumb is true of objects such as backups, which have to name old addresses.
func madeByReplumb(o client.Object) bool {
	return o.GetLabels()[v1alpha1.LabelRole] != "" || o.GetNamespace() == v1alpha1.SystemNamespace
}

// endedOrFromTemplate is true of objects that have ended, or whose template is looked at elsewhere.
func endedOrFromTemplate(o client.Object) bool {
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		return o.Labels[discoveryv1.LabelManagedBy] == fromPods
	case *corev1.Pod:
		over := o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed || !o.DeletionTimestamp.IsZero()
		return over || madeFromTemplate(o)
	case *batchv1.Job:
		if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "CronJob" {
			return true
		}
		for _, c := range o.Status.Conditions {
			if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
				return true
			}
		}
	}
	return false
}

// madeFromTemplate leaves out a ReplicaSet without a Deployment, since ReplicaSets are not listed.
func madeFromTemplate(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	switch owner.Kind {
	case "StatefulSet", "DaemonSet", "Job":
		return true
	case "ReplicaSet":
		return pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != ""
	}
	return false
}

func template(o client.Object) (string, *corev1.PodSpec) {
	switch o := o.(type) {
	case *corev1.Pod:
		return references.Name("Pod", o), &o.Spec
	case *appsv1.Deployment:
		return references.Name("Deployment", o), &o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		return references.Name("DaemonSet", o), &o.Spec.Template.Spec
	}
	return "", nil
}

func (i *Scan) takeAddresses(scanner *references.Scanner, pod *corev1.Pod) {
	if pod.Spec.HostNetwork { // another check is about addresses of nodes
		return
	}
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && scanner.InTarget(a) {
			i.InTarget = append(i.InTarget, PodAddress{Pod: pod.Namespace + "/" + pod.Name, Address: a})
		}
	}
}

func (i *Scan) sort() {
	sort.SliceStable(i.References, func(a, b int) bool { return i.References[a].Object < i.References[b].Object })
	sort.SliceStable(i.Proxies, func(a, b int) bool { return i.Proxies[a].Object < i.Proxies[b].Object })
	sort.SliceStable(i.Replacements, func(a, b int) bool { return i.Replacements[a].Object < i.Replacements[b].Object })
	sort.SliceStable(i.ControlPlane.Programs, func(a, b int) bool {
		x, y := &i.ControlPlane.Programs[a], &i.ControlPlane.Programs[b]
		return x.Node+string(x.Component) < y.Node+string(y.Component)
	})
	sort.SliceStable(i.Planes, func(a, b int) bool { return i.Planes[a].Object < i.Planes[b].Object })
	sort.SliceStable(i.CiliumModes, func(a, b int) bool { return i.CiliumModes[a].Object < i.CiliumModes[b].Object })
	sort.SliceStable(i.Meshes, func(a, b int) bool { return i.Meshes[a].Name < i.Meshes[b].Name })
	sort.SliceStable(i.NodeLocal, func(a, b int) bool { return i.NodeLocal[a].Object < i.NodeLocal[b].Object })
	sort.SliceStable(i.Called, func(a, b int) bool {
		return i.Called[a].Service.String()+i.Called[a].By < i.Called[b].Service.String()+i.Called[b].By
	})
	sort.SliceStable(i.Advertisers, func(a, b int) bool { return i.Advertisers[a].Object < i.Advertisers[b].Object })
	sort.SliceStable(i.InTarget, func(a, b int) bool { return i.InTarget[a].Pod < i.InTarget[b].Pod })
	sort.SliceStable(i.Stuck, func(a, b int) bool { return i.Stuck[a].Name < i.Stuck[b].Name })
	sort.SliceStable(i.Policies, func(a, b int) bool { return i.Policies[a].Name < i.Policies[b].Name })
	sort.SliceStable(i.Migrations, func(a, b int) bool { return i.Migrations[a].Name < i.Migrations[b].Name })
}
