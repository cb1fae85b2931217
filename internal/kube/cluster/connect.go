// Package cluster connects to the API servers of a cluster: fenced and paced clients, paged lists,
// identity, and the definitions of replumb.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/serviceranges"
)

// Groups of the API without Go types here.
const (
	CalicoGroup      = "crd.projectcalico.org"
	CertManagerGroup = "cert-manager.io"
	CiliumGroup      = "cilium.io"
)

// Cluster is a connection to one cluster. Its client has no cache, since a step must see the writes
// of the step before it.
type Cluster struct {
	client.WithWatch
	// ContextName is from the kubeconfig; empty if there is none.
	ContextName string

	raw    rest.Interface
	config *rest.Config
	// plain is config as it was given: what is wrapped around requests breaks streams.
	plain  *rest.Config
	host   string
	finder *serviceranges.Finder
	// skew is the lead of the API server's clock in nanoseconds. Copies share it.
	skew *atomic.Int64
}

// UnreachableError reports that no API server answered.
type UnreachableError struct {
	Host string
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("the API server at %s cannot be reached: %v", e.Host, e.Err)
}

func (*UnreachableError) Advice() string {
	return "is the cluster up, and is it the one you mean? see --kubeconfig and --context"
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Connect makes clients for a cluster, and sends nothing yet.
func Connect(config *rest.Config) (*Cluster, error) {
	plain := rest.CopyConfig(config)
	config = rest.CopyConfig(config)
	config.QPS = -1 // priority and fairness of the API server limits requests
	withFailover(config)
	through := newGate()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return paced{gate: through, next: next} })
	config.UserAgent = "replumb"
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	// Warnings would be printed between the lines of the progress.
	config.WarningHandler = rest.NoWarnings{}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: newMapper()})
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	raw, err := rest.UnversionedRESTClientFor(rawConfig(config, scheme))
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	cl := &Cluster{raw: raw, config: config, plain: plain, host: config.Host, skew: &atomic.Int64{}}
	cl.finder = serviceranges.NewFinder(func(ctx context.Context, version string) ([]byte, error) {
		return cl.GetRaw(ctx, "/apis/"+networkingv1.GroupName+"/"+version)
	})
	cl.WithWatch = fenced{serviceranges.NewClient(c, cl.finder)}
	return cl, nil
}

func rawConfig(config *rest.Config, scheme *runtime.Scheme) *rest.Config {
	config = rest.CopyConfig(config)
	config.GroupVersion = &schema.GroupVersion{}
	config.APIPath = "/"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return config
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, networkingv1.AddToScheme, networkingv1beta1.AddToScheme, discoveryv1.AddToScheme, authorizationv1.AddToScheme,
		apiextensionsv1.AddToScheme, v1alpha1.AddToScheme, coordinationv1.AddToScheme, admissionv1.AddToScheme,
		appsv1.AddToScheme, batchv1.AddToScheme, policyv1.AddToScheme, storagev1.AddToScheme, rbacv1.AddToScheme,
		autoscalingv2.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	return s, nil
}

type scoped struct{ namespaced, root []string }

func known() map[schema.GroupVersion]scoped {
	return map[schema.GroupVersion]scoped{
		corev1.SchemeGroupVersion: {
			namespaced: []string{
				"Service", "ServiceAccount", "Pod", "ConfigMap", "Secret", "Event", "PersistentVolumeClaim", "ResourceQuota",
			},
			root: []string{"Namespace", "Node", "PersistentVolume"},
		},
		appsv1.SchemeGroupVersion:         {namespaced: []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"}},
		autoscalingv2.SchemeGroupVersion:  {namespaced: []string{"HorizontalPodAutoscaler"}},
		batchv1.SchemeGroupVersion:        {namespaced: []string{"Job", "CronJob"}},
		policyv1.SchemeGroupVersion:       {namespaced: []string{"PodDisruptionBudget"}},
		discoveryv1.SchemeGroupVersion:    {namespaced: []string{"EndpointSlice"}},
		coordinationv1.SchemeGroupVersion: {namespaced: []string{"Lease"}},
		networkingv1.SchemeGroupVersion: {
			namespaced: []string{"NetworkPolicy", "Ingress"}, root: []string{"ServiceCIDR", "IPAddress", "IngressClass"},
		},
		networkingv1beta1.SchemeGroupVersion: {root: []string{"ServiceCIDR", "IPAddress"}},
		storagev1.SchemeGroupVersion:         {root: []string{"CSINode", "VolumeAttachment", "StorageClass"}},
		authorizationv1.SchemeGroupVersion:   {root: []string{"SelfSubjectAccessReview"}},
		apiextensionsv1.SchemeGroupVersion:   {root: []string{"CustomResourceDefinition"}},
		rbacv1.SchemeGroupVersion: {
			namespaced: []string{"Role", "RoleBinding"}, root: []string{"ClusterRole", "ClusterRoleBinding"},
		},
		v1alpha1.GroupVersion: {root: []string{"Migration", "NodeReport"}},
		{Group: CalicoGroup, Version: "v1"}: {
			root: []string{"IPPool", "IPAMBlock", "BlockAffinity", "IPAMHandle", "ClusterInformation", "IPReservation"},
		},
		{Group: "operator.tigera.io", Version: "v1"}:     {root: []string{"Installation"}},
		{Group: CiliumGroup, Version: "v2"}:              {root: []string{"CiliumNode"}},
		{Group: CiliumGroup, Version: "v2alpha1"}:        {root: []string{"CiliumPodIPPool"}},
		{Group: CertManagerGroup, Version: "v1"}:         {namespaced: []string{"Certificate"}},
		{Group: "apiregistration.k8s.io", Version: "v1"}: {root: []string{"APIService"}},
		admissionv1.SchemeGroupVersion: {root: []string{
			"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy",
			"ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
		}},
	}
}

func resourceOf(gvk schema.GroupVersionKind) (plural, singular schema.GroupVersionResource) {
	plural, singular = meta.UnsafeGuessKindToResource(gvk)
	switch gvk.Kind {
	case "IPAddress":
		plural = gvk.GroupVersion().WithResource("ipaddresses")
	case "ValidatingAdmissionPolicy", "MutatingAdmissionPolicy":
		plural = gvk.GroupVersion().WithResource(strings.TrimSuffix(strings.ToLower(gvk.Kind), "y") + "ies")
	}
	return plural, singular
}

// newMapper does without discovery, and so also works before the CRD of Migration is installed.
func newMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for gv, kinds := range known() {
		add := func(scope meta.RESTScope, kinds []string) {
			for _, kind := range kinds {
				plural, singular := resourceOf(gv.WithKind(kind))
				m.AddSpecific(gv.WithKind(kind), plural, singular, scope)
			}
		}
		add(meta.RESTScopeNamespace, kinds.namespaced)
		add(meta.RESTScopeRoot, kinds.root)
	}
	return m
}

// Resources are the stored ones with a mapping in the client.
func Resources() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for gv, kinds := range known() {
		for _, kind := range slices.Concat(kinds.namespaced, kinds.root) {
			if kind == "SelfSubjectAccessReview" || kind == "Event" {
				continue
			}
			plural, _ := resourceOf(gv.WithKind(kind))
			all = append(all, plural)
		}
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// RESTConfig is a copy, for other clients.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Host is host:port of the API server in the kubeconfig.
func (c *Cluster) Host() string {
	u, err := url.Parse(c.host)
	if err != nil || u.Host == "" {
		return c.host
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Host, "443")
	}
	return u.Host
}

// GetRaw reads a path such as /version.
func (c *Cluster) GetRaw(ctx context.Context, path string) ([]byte, error) {
	return c.GetQuery(ctx, path, nil)
}

// GetQuery is GetRaw with parameters, such as the limit of a list.
func (c *Cluster) GetQuery(ctx context.Context, path string, params map[string]string) ([]byte, error) {
	request := c.raw.Get().AbsPath(path)
	for name, value := range params {
		request.Param(name, value)
	}
	body, err := request.DoRaw(ctx)
	if err != nil {
		return body, fmt.Errorf("reading %s: %w", path, err)
	}
	return body, nil
}

// GetAs is GetRaw for a path with answers in several forms. kind is the media type of the answer.
func (c *Cluster) GetAs(ctx context.Context, path, accept string) (body []byte, kind string, err error) {
	result := c.raw.Get().AbsPath(path).SetHeader("Accept", accept).Do(ctx).ContentType(&kind)
	if body, err = result.Raw(); err != nil {
		return nil, "", fmt.Errorf("reading %s: %w", path, err)
	}
	kind, _, err = mime.ParseMediaType(kind)
	return body, kind, err
}

// ServerVersion is the first request of a command: it tells in one line if no API server answers.
func (c *Cluster) ServerVersion(ctx context.Context) (*version.Info, error) {
	body, err := c.raw.Get().AbsPath("/version").DoRaw(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		var status apierrors.APIStatus
		if errors.As(err, &status) && status.Status().Code > 0 && !unreachable(err) {
			return nil, fmt.Errorf("asking %s for its version: %w", c.host, err)
		}
		return nil, &UnreachableError{Host: c.host, Err: cause(err)}
	}
	return decodeVersion(body)
}

func unreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network)
}

// cause strips the request line that net/http puts before the reason.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op
	}
	if i := strings.LastIndex(err.Error(), "\": "); i >= 0 {
		return errors.New(err.Error()[i+3:])
	}
	return err
}

func decodeVersion(body []byte) (*version.Info, error) {
	v := &version.Info{}
	if err := json.Unmarshal(body, v); err != nil {
		return nil, fmt.Errorf("reading the server's version: %w", err)
	}
	return v, nil
}

// Ranges is the served version of ServiceCIDRs. The client takes and returns v1 with any.
func (c *Cluster) Ranges(ctx context.Context) (serviceranges.RangeAPI, error) {
	return c.finder.Find(ctx)
}
