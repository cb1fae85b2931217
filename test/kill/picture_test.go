package kill

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
)

// picture is what a cluster holds, by kind and name, without what is different each time: times, UIDs, versions, and the
// addresses and ports that bridges happened to get.
type picture map[string]string

// look takes everything that replumb could have written, or lost.
func (c *cluster) look(t *testing.T) picture {
	t.Helper()
	own := c.bridges(t)
	p := picture{}
	for _, o := range listed(t, c,
		&corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}, &networkingv1.IPAddressList{}, &networkingv1.ServiceCIDRList{},
		&corev1.ConfigMapList{}, &corev1.SecretList{}, &corev1.NamespaceList{}, &coordinationv1.LeaseList{}, &v1alpha1.MigrationList{},
		&admissionv1.ValidatingAdmissionPolicyList{}, &admissionv1.ValidatingAdmissionPolicyBindingList{},
		&admissionv1.MutatingAdmissionPolicyList{}, &admissionv1.MutatingAdmissionPolicyBindingList{}, &appsv1.DeploymentList{},
	) {
		if lease, ok := o.(*coordinationv1.Lease); ok && lease.Labels["apiserver.kubernetes.io/identity"] != "" {
			continue // renewed by the API server all the time
		}
		if cm, ok := o.(*corev1.ConfigMap); ok && cm.Name == "extension-apiserver-authentication" {
			continue // the certificates of the API server
		}
		if tells(o) {
			continue // what happened differs
		}
		kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
		text := own.Replace(plain(t, o))
		name := own.Replace(kind + " " + o.GetNamespace() + "/" + o.GetName())
		p[volatile.ReplaceAllString(name, "<volatile>")] = volatile.ReplaceAllString(text, "<volatile>")
	}
	return p
}

// listed are all objects of some kinds.
func listed(t *testing.T, c client.Client, kinds ...client.ObjectList) (all []client.Object) {
	t.Helper()
	for _, list := range kinds {
		must(t, c.List(t.Context(), list))
		items, err := meta.ExtractList(list)
		must(t, err)
		for _, item := range items {
			all = append(all, item.(client.Object))
		}
	}
	return all
}

// volatile are UIDs, times and the names of backups, which are made from their content.
var volatile = regexp.MustCompile(
	`backup-move-[0-9a-f]{12}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`,
)

// bridges replaces names and addresses of bridges, and of memos, by the Services they are of.
func (c *cluster) bridges(t *testing.T) *strings.Replacer {
	t.Helper()
	var all []string
	services := &corev1.ServiceList{}
	must(t, c.List(t.Context(), services))
	for i := range services.Items {
		svc := &services.Items[i]
		all = append(all, bridge.MemoAddress(svc.UID).String(), "memo-of-"+svc.Namespace+"/"+svc.Name,
			bridge.Name(svc.Name, svc.UID), "bridge-of-"+svc.Name) // which may be gone
		if svc.Labels[v1alpha1.LabelRole] != v1alpha1.RoleBridge {
			continue
		}
		of := svc.Annotations[v1alpha1.AnnotationService]
		all = append(all, svc.Name, "bridge-of-"+of, svc.Spec.ClusterIP, "address-of-the-bridge-of-"+of)
	}
	if at, err := url.Parse(c.Config.Host); err == nil {
		all = append(all, ": "+at.Port(), ": <port>", `":`+at.Port(), `":<port>`)
	}
	return strings.NewReplacer(append(all, c.front.Listener.Addr().String(), "<front>", c.Etcd, "<etcd>")...)
}

// plain is an object as YAML, without its history.
func plain(t *testing.T, o client.Object) string {
	t.Helper()
	body, err := json.Marshal(o)
	must(t, err)
	var whole map[string]any
	must(t, json.Unmarshal(body, &whole))
	notes := whole["metadata"].(map[string]any)
	for _, key := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"} {
		if _, deployment := o.(*appsv1.Deployment); !deployment || key != "generation" { // one restart is enough
			delete(notes, key)
		}
	}
	switch o := o.(type) {
	case *v1alpha1.Migration:
		for _, key := range []string{"planHash", "backups"} { // of the last of several plans; digests of what has UIDs and times in it
			delete(whole["status"].(map[string]any), key)
		}
	case *corev1.Service:
		if o.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge {
			delete(whole["spec"].(map[string]any), "healthCheckNodePort")
		}
	case *corev1.ConfigMap:
		if o.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBackup {
			for _, key := range []string{"annotations", "binaryData", "data"} { // times, compressed, and what they sum up to
				delete(whole, key)
				delete(notes, key)
			}
		}
	}
	text, err := yaml.Marshal(whole)
	must(t, err)
	return string(text)
}

// tells reports whether an object is what is kept of runs, for people to read: journals and reports.
func tells(o client.Object) bool {
	role := o.GetLabels()[v1alpha1.LabelRole]
	return role == v1alpha1.RoleJournal || role == v1alpha1.RoleArchive
}

// differences are what is not the same in two pictures, one a line.
func differences(want, got picture) []string {
	var all []string
	for name, text := range want {
		switch have, ok := got[name]; {
		case !ok:
			all = append(all, "lost: "+name)
		case have != text:
			all = append(all, "differs: "+name+"\n"+lines(text, have))
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			all = append(all, "left over: "+name)
		}
	}
	slices.Sort(all)
	return all
}

// lines are those that only one of two texts has.
func lines(want, got string) string {
	var out strings.Builder
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, l := range w {
		if !slices.Contains(g, l) {
			out.WriteString("\t- " + l + "\n")
		}
	}
	for _, l := range g {
		if !slices.Contains(w, l) {
			out.WriteString("\t+ " + l + "\n")
		}
	}
	return out.String()
}

// same fails the test unless a cluster comes to look as it should.
func same(t *testing.T, want picture, when string, take func(*testing.T) picture) {
	t.Helper()
	var all []string
	_ = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		all = differences(want, take(t))
		return len(all) == 0, nil
	})
	for _, d := range all {
		t.Errorf("%s: %s", when, d)
	}
}
