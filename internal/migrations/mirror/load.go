package mirror

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/objectsync/copypreview"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/mirror/certificates"
	"github.com/replumb/replumb/internal/network/dnscutover"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

func (s *Spec) chosen(namespace string) bool {
	matches := func(pattern string) bool { ok, _ := path.Match(pattern, namespace); return ok }
	in := s.Copy.Namespaces.Include
	return (len(in) == 0 || slices.ContainsFunc(in, matches)) && !slices.ContainsFunc(s.Copy.Namespaces.Exclude, matches)
}

func (j *Job) survey(ctx context.Context) (*Inventory, error) {
	s, err := j.glance(ctx)
	if err != nil {
		return nil, err
	}
	looks := []func(context.Context, *Inventory) error{
		j.lookAtSides, j.lookAtFreeze, j.lookAtNetworks, j.lookAtRoom, j.lookAtWebhooks, j.lookAtNames, j.lookAtCertificates, j.lookAtObjects,
		j.lookAtPorts, j.lookAtTarget,
	}
	if j.WithoutTarget {
		looks = []func(context.Context, *Inventory) error{j.rememberSides, j.lookAtCertificates}
	}
	for _, look := range looks {
		if err := look(ctx, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (j *Job) glance(ctx context.Context) (*Inventory, error) {
	s := &Inventory{Spec: j.Spec, Freeze: j.Spec.Common.Freeze != v1alpha1.FreezeDisabled}
	m, err := migration.Get(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil {
		return nil, err
	}
	if m != nil {
		s.Remembered, s.Records = m.Status.Mirror, m.Status.Records
	}
	if s.Remembered != nil {
		s.Names, s.Copies = dnscutover.Renew(s.Remembered.Names, j.Spec.Redirect), s.Remembered.Copies
	}
	return s, nil
}

func (j *Job) lookAtNetworks(_ context.Context, s *Inventory) error {
	s.Networks = j.described()
	return nil
}

func (j *Job) lookAtSides(ctx context.Context, s *Inventory) (err error) {
	for _, of := range []struct {
		side *side
		into *Side
	}{{j.from, &s.Source}, {j.to, &s.Target}} {
		of.into.UID = of.side.uid
		if of.into.Version, err = of.side.ServerVersion(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rememberSides goes by what the Migration recorded of both clusters.
func (j *Job) rememberSides(_ context.Context, s *Inventory) error {
	s.Objects = &copypreview.Inventory{}
	if s.Remembered != nil {
		s.Source.UID, s.Target.UID = s.Remembered.SourceUID, s.Remembered.TargetUID
	}
	return nil
}

// lookAtFreeze finds kinds to freeze that are not served, and would silently freeze nothing.
func (j *Job) lookAtFreeze(_ context.Context, s *Inventory) error {
	if !s.Freeze || len(s.Spec.FreezeKinds) == 0 {
		return nil
	}
	served, err := j.from.served()
	if err != nil {
		return err
	}
	for _, kind := range s.Spec.FreezeKinds {
		if !slices.ContainsFunc(served, func(r schema.GroupResource) bool { return r.String() == kind }) {
			s.Unfreezable = append(s.Unfreezable, kind)
		}
	}
	return nil
}

func (j *Job) lookAtRoom(ctx context.Context, s *Inventory) error {
	pods, err := cluster.List[corev1.Pod](ctx, j.from, &corev1.PodList{})
	if err != nil {
		return err
	}
	s.Moving = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return ofDaemonSet(&p) || !s.Spec.chosen(p.Namespace) })
	if s.InTarget, err = cluster.List[corev1.Pod](ctx, j.to, &corev1.PodList{}); err != nil {
		return err
	}
	s.There = slices.DeleteFunc(slices.Clone(s.InTarget), func(p corev1.Pod) bool { return s.Spec.chosen(p.Namespace) })
	if s.Nodes, err = cluster.List[corev1.Node](ctx, j.to, &corev1.NodeList{}); err != nil {
		return err
	}
	classes, err := cluster.List[storagev1.StorageClass](ctx, j.to, &storagev1.StorageClassList{})
	for _, c := range classes {
		s.Classes = append(s.Classes, c.Name)
		if c.Provisioner == noProvisioner {
			s.Manual = append(s.Manual, c.Name)
		}
	}
	return err
}

// lookAtTarget finds what else of the target copies would come up against.
func (j *Job) lookAtTarget(ctx context.Context, s *Inventory) error {
	if s.Serving() != v1alpha1.ServingSource {
		return nil
	}
	if err := j.lookAtWorkloads(ctx, s); err != nil {
		return err
	}
	return j.lookAtQuotas(ctx, s)
}

// lookAtNames finds the names that lead to the source, until names have begun to move.
func (j *Job) lookAtNames(ctx context.Context, s *Inventory) error {
	if s.Serving() != v1alpha1.ServingSource {
		return nil
	}
	if s.Names = nil; s.Spec.Redirect.Provider == nil {
		return nil
	}
	source, err := j.from.names(ctx, &s.Spec)
	if err != nil {
		return err
	}
	target, err := j.to.names(ctx, &s.Spec)
	if err != nil {
		return err
	}
	if s.Names, s.Awaited, s.Problems = pair(source, target, s.Spec.Redirect); len(s.Spec.Redirect.Names) > 0 {
		return nil
	}
	return j.leaveUnknown(ctx, s)
}

// leaveUnknown drops discovered names without a record of their own.
func (j *Job) leaveUnknown(ctx context.Context, s *Inventory) error {
	leads, err := j.cutovers(ctx, s.Names)
	if err != nil {
		return err
	}
	known, problems, err := dnscutover.Existing(ctx, leads)
	if err != nil {
		return err
	}
	s.Problems, s.Names = append(s.Problems, problems...), nil
	for _, l := range known {
		s.Names = append(s.Names, l.Name)
	}
	return nil
}

func (s *side) names(ctx context.Context, of *Spec) ([]dnscutover.FoundName, error) {
	objects, err := s.read(ctx, dnscutover.Kinds())
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o unstructured.Unstructured) bool { return !of.chosen(o.GetNamespace()) })
	return dnscutover.Discover(objects), nil
}

// pair puts together where names lead. Awaited names lack an address in the target yet.
func pair(
	source, target []dnscutover.FoundName,
	r v1alpha1.RedirectSpec,
) (names []v1alpha1.RedirectName, awaited []string, problems []dnscutover.Problem) {
	known := map[string]bool{}
	for _, f := range target {
		addresses, differ := f.Addresses()
		known[f.Name] = len(addresses) > 0 || differ != ""
	}
	waits := func(name string, to []string) bool {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		wait := len(r.To) == 0 && len(to) == 0 && !known[name]
		if wait {
			awaited = append(awaited, name)
		}
		return wait
	}
	if len(r.Names) > 0 {
		r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n v1alpha1.RedirectName) bool { return waits(n.Name, n.To) })
		if len(r.Names) == 0 {
			return nil, awaited, nil
		}
	} else {
		source = slices.DeleteFunc(slices.Clone(source),
			func(f dnscutover.FoundName) bool { return dnsrecords.Nameable(f.Name) && waits(f.Name, nil) })
	}
	names, problems = dnscutover.Pair(source, target, r)
	return names, awaited, problems
}

func (j *Job) lookAtObjects(ctx context.Context, s *Inventory) (err error) {
	if s.Objects = (&copypreview.Inventory{}); s.Serving() != v1alpha1.ServingSource {
		return nil
	}
	if s.Objects, err = copypreview.Of(ctx, j.copying.copier); err != nil || s.Spec.Copy.Volumes != v1alpha1.VolumesCopy {
		return err
	}
	if s.Volumes, err = cluster.List[corev1.PersistentVolume](ctx, j.to, &corev1.PersistentVolumeList{}); err != nil {
		return err
	}
	claims, err := j.from.read(ctx, []string{"persistentvolumeclaims"})
	if err != nil {
		return err
	}
	kind := objects.ResourceKind{Version: "v1", Kind: "PersistentVolumeClaim", Resource: "persistentvolumeclaims", Namespaced: true}
	for i := range claims {
		copied, why, err := j.copying.copier.Rules.Take(kind, &claims[i])
		if err != nil || why != "" {
			continue // reported elsewhere
		}
		class, named, _ := unstructured.NestedString(copied.Object, "spec", "storageClassName")
		name := claims[i].GetNamespace() + "/" + claims[i].GetName()
		claim := Claim{Object: kind.String() + " " + name, Class: class}
		if named {
			claim.Unprovided = whyUnprovided(name, class, s.Manual, s.Volumes)
		}
		s.Claims = append(s.Claims, claim)
	}
	return nil
}

func (j *Job) lookAtCertificates(ctx context.Context, s *Inventory) error {
	aliases := s.Spec.aliases()
	if len(aliases) == 0 && s.Remembered == nil { // else an earlier run may have added some
		return nil
	}
	objects, err := j.from.read(ctx, []string{"certificates.cert-manager.io", "ingresses.networking.k8s.io"})
	if err != nil {
		return err
	}
	for i := range objects {
		o := &objects[i]
		if !s.Spec.chosen(o.GetNamespace()) {
			if c := certificates.Of(o, nil); c != nil { // it was chosen before
				s.Certified = append(s.Certified, *c)
			}
			continue
		}
		if c := certificates.Of(o, aliases); c != nil {
			s.Certified = append(s.Certified, *c)
			if len(c.Add) > 0 {
				s.Originals = append(s.Originals, o)
			}
			continue
		}
		s.Uncovered = append(s.Uncovered, j.uncovered(ctx, o, aliases)...)
	}
	return nil
}

// uncovered are certificates of an Ingress that cert-manager does not issue, and that lack aliases.
func (j *Job) uncovered(ctx context.Context, o *unstructured.Unstructured, aliases []v1alpha1.HostAlias) []Uncovered {
	if o.GetKind() != certificates.IngressKind().Kind || certificates.Issued(o) {
		return nil
	}
	var out []Uncovered
	tls, _, _ := unstructured.NestedSlice(o.Object, "spec", "tls")
	for _, entry := range tls {
		m, _ := entry.(map[string]any)
		hosts, _, _ := unstructured.NestedStringSlice(m, "hosts")
		secret, _, _ := unstructured.NestedString(m, "secretName")
		for _, a := range aliases {
			if secret == "" || !slices.Contains(hosts, a.Name) {
				continue
			}
			err := certificates.Good(ctx, j.from, client.ObjectKey{Namespace: o.GetNamespace(), Name: secret}, []string{a.Alias})
			if err != nil && apierrors.ReasonForError(err) == "" { // it is about the certificate
				out = append(out, Uncovered{Secret: o.GetNamespace() + "/" + secret, Alias: a.Alias})
			}
		}
	}
	return out
}

// Title is what the record of a name is called.
func Title(n v1alpha1.RedirectName) string {
	return dnsrecords.Title(strings.TrimSuffix(n.Name, ".")+".", n.Type)
}

func places(ctx context.Context, leads []*dnscutover.PairedName) map[string]string {
	out := map[string]string{}
	for _, l := range leads {
		place, err := l.Move.Position(ctx)
		out[Title(l.Name)] = string(place)
		if err != nil {
			out[Title(l.Name)] = fmt.Sprintf("unknown: %v", err)
		}
	}
	return out
}
