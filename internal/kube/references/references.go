// Package references finds written addresses of a Service range in objects of all kinds. It reports
// which address or range stands where, and never quotes the text around, which may be secret.
package references

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const perObject = 20

// Reference is one place where an address or range is written down.
type Reference struct {
	// Object as kind, then namespace/name or name: "ConfigMap shop/cart".
	Object string
	// Field of the object: "data[config.yaml]".
	Field string
	// Value is the address, range or reverse zone; empty in a Secret.
	Value string
	// Bypass says that it is in a container's list of destinations without proxy, which lacks the
	// new ranges: calls would go through the proxy.
	Bypass bool
	// Covered ranges are made up for by others in the policy.
	Covered bool
}

func (r Reference) Kind() string {
	kind, _, _ := strings.Cut(r.Object, " ")
	return kind
}

func (r Reference) IsPolicy() bool {
	switch r.Kind() {
	case "NetworkPolicy", calicoKinds, "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", "CiliumCIDRGroup", "AuthorizationPolicy":
		return true
	}
	return false
}

// Names is what is written there, in words: the value, unless that stays secret.
func (r Reference) Names() string {
	if r.Value == "" {
		return "an old address or range"
	}
	return r.Value
}

func (r Reference) IsZone() bool {
	return strings.HasSuffix(r.Value, zoneEnd4) || strings.HasSuffix(r.Value, zoneEnd6)
}

// Find lists an object's references in a stable order, at most 20.
func (s *Scanner) Find(o client.Object) []Reference {
	w := &walk{scanner: s}
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		w.volume("PersistentVolume", o)
	case *corev1.ConfigMap:
		w.configMap(o)
	case *corev1.Secret:
		w.secret(o)
	case *corev1.Pod:
		w.object("Pod", o)
		w.podSpec("spec", &o.Spec)
	case *appsv1.Deployment:
		w.object("Deployment", o)
		w.template("spec.template", &o.Spec.Template)
	case *appsv1.StatefulSet:
		w.object("StatefulSet", o)
		w.template("spec.template", &o.Spec.Template)
	case *appsv1.DaemonSet:
		w.object("DaemonSet", o)
		w.template("spec.template", &o.Spec.Template)
	case *batchv1.Job:
		w.object("Job", o)
		w.template("spec.template", &o.Spec.Template)
	case *batchv1.CronJob:
		w.object("CronJob", o)
		w.template("spec.jobTemplate.spec.template", &o.Spec.JobTemplate.Spec.Template)
	default:
		w.policies(o)
		w.traffic(o)
	}
	return w.found
}

func (w *walk) policies(o client.Object) {
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		w.networkPolicy(o)
	case *admissionv1.ValidatingWebhookConfiguration:
		w.object("ValidatingWebhookConfiguration", o)
		for i, h := range o.Webhooks {
			w.url(fmt.Sprintf("webhooks[%d].clientConfig.url", i), h.ClientConfig.URL)
		}
	case *admissionv1.MutatingWebhookConfiguration:
		w.object("MutatingWebhookConfiguration", o)
		for i, h := range o.Webhooks {
			w.url(fmt.Sprintf("webhooks[%d].clientConfig.url", i), h.ClientConfig.URL)
		}
	case *apiextensionsv1.CustomResourceDefinition:
		w.object("CustomResourceDefinition", o)
		if c := o.Spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil {
			w.url("spec.conversion.webhook.clientConfig.url", c.Webhook.ClientConfig.URL)
		}
	}
}

type walk struct {
	scanner *Scanner
	name    string
	// covered is what is added to be.
	covered bool
	found   []Reference
}

func (w *walk) object(kind string, o client.Object) { w.name = Name(kind, o) }

// Name is how a Reference names an object.
func Name(kind string, o client.Object) string {
	if o.GetNamespace() == "" {
		return kind + " " + o.GetName()
	}
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

func (w *walk) add(field, value string) {
	w.note(Reference{Object: w.name, Field: field, Value: value, Covered: w.covered})
}

func (w *walk) note(r Reference) {
	for _, have := range w.found {
		if have == r {
			return
		}
	}
	if len(w.found) < perObject {
		r.Value = strings.Clone(r.Value) // or it would keep all that it was cut from
		w.found = append(w.found, r)
	}
}

func (w *walk) text(field, text string) {
	for _, value := range w.scanner.Values(text) {
		w.add(field, value)
	}
}

func (w *walk) texts(field string, all []string) {
	for i, text := range all {
		w.text(fmt.Sprintf("%s[%d]", field, i), text)
	}
}

func (w *walk) values(field string, all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		w.text(fmt.Sprintf("%s[%s]", field, key), all[key])
	}
}

func (w *walk) url(field string, url *string) {
	if url != nil {
		w.text(field, *url)
	}
}

func (w *walk) configMap(o *corev1.ConfigMap) {
	w.object("ConfigMap", o)
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		field := fmt.Sprintf("data[%s]", key)
		w.text(field, o.Data[key])
		for _, zone := range w.scanner.Zones(o.Data[key]) {
			w.add(field, zone)
		}
	}
}

// secret notes under which keys something is found, never what.
func (w *walk) secret(o *corev1.Secret) {
	w.object("Secret", o)
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		text := string(o.Data[key])
		if len(w.scanner.Values(text)) > 0 || len(w.scanner.Zones(text)) > 0 {
			w.add(fmt.Sprintf("data[%s]", key), "")
		}
	}
}

func (w *walk) volume(kind string, o *corev1.PersistentVolume) {
	w.object(kind, o)
	src := &o.Spec.PersistentVolumeSource
	if v := src.NFS; v != nil {
		w.text("spec.nfs.server", v.Server)
	}
	if v := src.ISCSI; v != nil {
		w.text("spec.iscsi.targetPortal", v.TargetPortal)
		w.texts("spec.iscsi.portals", v.Portals)
	}
	if v := src.CSI; v != nil {
		w.text("spec.csi.volumeHandle", v.VolumeHandle)
		w.values("spec.csi.volumeAttributes", v.VolumeAttributes)
	}
	if v := src.CephFS; v != nil {
		w.texts("spec.cephfs.monitors", v.Monitors)
	}
	if v := src.RBD; v != nil {
		w.texts("spec.rbd.monitors", v.CephMonitors)
	}
	if v := src.FlexVolume; v != nil {
		w.values("spec.flexVolume.options", v.Options)
	}
	w.texts("spec.mountOptions", o.Spec.MountOptions)
}
