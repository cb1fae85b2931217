// Package copyrules decides what of a cluster is copied, in which order, and how it is changed on
// the way.
package copyrules

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/spec"
)

// DefaultParallel is how many objects are written at once.
const DefaultParallel = 16

const maxParallel = 128

// generation counts changes of the rules for Secrets, whose copies are then written again.
const generation = "1"

// Options are what Rules are made from.
type Options struct {
	Migration   string
	Copy        v1alpha1.CopySpec
	Hosts       []v1alpha1.HostAlias
	Singletons  v1alpha1.SingletonSpec
	Credentials map[v1alpha1.SecretReference]*corev1.Secret
	Network     SourceNetwork
	// Awake lets singletons run in the target: names lead there.
	Awake bool
}

// SourceNetwork is the source's pod network. It is left out, unless
// spec.mirror.copy.namespaces.include names its namespace: two on one node break each other.
type SourceNetwork struct {
	Namespaces []string
	Objects    []objects.Ref
}

// Rules say what is copied and how it is changed. They are immutable and safe for concurrent
// use.
type Rules struct {
	options    Options
	selector   labels.Selector
	leftOut    leftOut
	transforms []transform
	registries []registry
	singletons map[singleton]bool
	// digest of what copies of Secrets depend on, but for the contents of credentials.
	digest string
}

// New compiles a spec with its defaults. It fails with a *spec.Error of the first wrong field.
func New(o Options) (*Rules, error) {
	orElse(&o.Copy.Existing, v1alpha1.ExistingRefuse)
	orElse(&o.Copy.NodePorts, v1alpha1.NodePortsKeep)
	orElse(&o.Copy.Volumes, v1alpha1.VolumesRefuse)
	orElse(&o.Copy.Parallel, DefaultParallel)
	orElse(&o.Singletons.CronJobs, v1alpha1.CronJobsSuspend)
	r := &Rules{options: o, leftOut: newLeftOut()}
	if err := r.validate(); err != nil {
		return nil, err
	}
	var err error
	if r.selector, err = selector("spec.mirror.copy.selector", o.Copy.Selector); err != nil {
		return nil, err
	}
	if r.singletons, err = readSingletons(o.Singletons.Workloads); err != nil {
		return nil, err
	}
	if r.registries, err = readRegistries(o.Copy.Registries, o.Credentials); err != nil {
		return nil, err
	}
	for i := range o.Copy.Transforms {
		t, err := readTransform(fmt.Sprintf("spec.mirror.copy.transforms[%d]", i), o.Copy.Transforms[i])
		if err != nil {
			return nil, err
		}
		r.transforms = append(r.transforms, t)
	}
	r.digest, err = r.sum()
	return r, err
}

func orElse[T comparable](field *T, otherwise T) {
	var unset T
	if *field == unset {
		*field = otherwise
	}
}

func (r *Rules) sum() (string, error) {
	o := r.options
	body, err := json.Marshal([]any{generation, o.Copy.Registries, o.Copy.Transforms})
	if err != nil {
		return "", fmt.Errorf("reading spec.mirror.copy: %w", err)
	}
	h := sha256.New()
	_, _ = h.Write(body)
	for _, swap := range o.Copy.Registries {
		if c := swap.Credentials; c != nil && o.Credentials[*c] != nil {
			_, _ = fmt.Fprintf(h, "%s/%s", o.Credentials[*c].UID, o.Credentials[*c].ResourceVersion)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Migration is whose copies these are.
func (r *Rules) Migration() string { return r.options.Migration }

// Parallel is how many objects are written at once.
func (r *Rules) Parallel() int32 { return r.options.Copy.Parallel }

func (r *Rules) Existing() v1alpha1.ExistingPolicy { return r.options.Copy.Existing }

func (r *Rules) Volumes() v1alpha1.VolumePolicy { return r.options.Copy.Volumes }

func (r *Rules) Kind(k objects.ResourceKind) string {
	if why := r.leftOut.kind(k); why != "" {
		return why
	}
	if !chosen(r.options.Copy.Kinds, k.String()) {
		return OfNoKind
	}
	return ""
}

// Take makes the copy of an object. It returns nil, and why, if the object is left out. Errors
// contain no value of a Secret.
func (r *Rules) Take(k objects.ResourceKind, o *unstructured.Unstructured) (taken *unstructured.Unstructured, why string, err error) {
	if why := r.WhyNot(k, o); why != "" {
		return nil, why, nil
	}
	taken, err = r.Convert(k, o.DeepCopy())
	return taken, "", err
}

func (r *Rules) Convert(k objects.ResourceKind, taken *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	version := fmt.Sprintf("%s/%s", taken.GetUID(), taken.GetResourceVersion())
	taken.SetAPIVersion(k.GVR().GroupVersion().String())
	taken.SetKind(k.Kind)
	r.strip(k, taken)
	r.swapRegistries(k, taken)
	if k.IsSecret() {
		if err := r.addCredentials(taken); err != nil {
			return nil, err
		}
	}
	for _, h := range r.options.Hosts {
		addAlias(k, taken, h)
	}
	for _, t := range r.transforms {
		var err error
		if taken, err = t.apply(k, taken); err != nil {
			return nil, err
		}
	}
	r.suspend(k, taken)
	objects.SetLabel(taken, v1alpha1.LabelMirror, r.options.Migration)
	objects.SetAnnotation(taken, v1alpha1.AnnotationCopied, r.fingerprint(k, version, taken))
	return taken, nil
}

// fingerprint tells copies apart. That of a Secret is made from its version, since short values
// could be guessed from their hash.
func (r *Rules) fingerprint(k objects.ResourceKind, version string, taken *unstructured.Unstructured) string {
	h := sha256.New()
	if k.IsSecret() {
		_, _ = fmt.Fprintf(h, "%s/%s", r.digest, version)
	} else if err := json.NewEncoder(h).Encode(taken.Object); err != nil {
		return "" // it cannot be written either
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Owns reports whether replumb may change an object. Controllers hand on labels, but not ownership.
func (r *Rules) Owns(o metav1.Object) bool {
	return o.GetLabels()[v1alpha1.LabelMirror] == r.options.Migration && o.GetAnnotations()[v1alpha1.AnnotationCopied] != "" &&
		metav1.GetControllerOfNoCopy(o) == nil
}

// Adopts reports whether each cluster makes an object of this name itself, which the copy joins.
func Adopts(k objects.ResourceKind, of objects.Key) bool {
	return (k.Is("", "Namespace") && of.Name == "default") || (k.Is("", "ServiceAccount") && of.Name == "default")
}

func (r *Rules) validate() error {
	c := &r.options.Copy
	for field, patterns := range map[string][]string{
		"namespaces.include": c.Namespaces.Include, "namespaces.exclude": c.Namespaces.Exclude,
		"kinds.include": c.Kinds.Include, "kinds.exclude": c.Kinds.Exclude,
	} {
		if err := validatePatterns("spec.mirror.copy."+field, patterns); err != nil {
			return err
		}
	}
	for i, h := range r.options.Hosts {
		if h.Name == "" || h.Alias == "" || h.Name == h.Alias {
			return &spec.Error{
				Field: fmt.Sprintf("spec.mirror.hosts[%d]", i), Problem: "lacks name or alias, or they are the same",
				Hint: "write the name that clients know, and another for the mirror",
			}
		}
	}
	if c.Parallel < 1 || c.Parallel > maxParallel {
		return &spec.Error{
			Field: "spec.mirror.copy.parallel", Problem: fmt.Sprintf("%d is not within 1 and %d", c.Parallel, maxParallel),
			Hint: fmt.Sprintf("%d is a good number", DefaultParallel),
		}
	}
	for _, p := range []struct {
		field, value string
		allowed      []string
	}{
		{"spec.mirror.copy.existing", string(c.Existing), []string{"Refuse", "Keep", "Overwrite"}},
		{"spec.mirror.copy.nodePorts", string(c.NodePorts), []string{"Keep", "Strip"}},
		{"spec.mirror.copy.volumes", string(c.Volumes), []string{"Refuse", "Skip", "Copy"}},
		{"spec.mirror.singletons.cronJobs", string(r.options.Singletons.CronJobs), []string{"Suspend", "Leave"}},
	} {
		if !slices.Contains(p.allowed, p.value) {
			return &spec.Error{
				Field:   p.field,
				Problem: fmt.Sprintf("%q is not known", p.value),
				Hint:    fmt.Sprintf("use one of %v", p.allowed),
			}
		}
	}
	return nil
}

// Prunable are kinds that go without taking others, or what is stored, with them.
func Prunable(k objects.ResourceKind) bool {
	return !k.Is("", "Namespace") && !k.Is("", "PersistentVolumeClaim") && k.Group != objects.Definitions().Group
}
