package mirror

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/copypreview"
	"github.com/replumb/replumb/internal/migrations/mirror/certificates"
	"github.com/replumb/replumb/internal/network/dnscutover"
)

// Inventory is what a look at both clusters found.
type Inventory struct {
	Spec Spec
	// Remembered is what the Migration knows; nil before it began.
	Remembered *v1alpha1.MirrorStatus

	// Records are the DNS records that the Migration has prepared or moved, as they were.
	Records []v1alpha1.RecordStatus

	Source, Target Side
	// Moving are pods of the source to be copied, There pods of the target that are no copies.
	Moving, There []corev1.Pod
	Nodes         []corev1.Node
	Classes       []string
	// Manual are those of Classes for which people make the volumes. Volumes are the target's.
	Manual  []string
	Volumes []corev1.PersistentVolume
	// InTarget are all pods of the target, Workloads those that are copied.
	InTarget  []corev1.Pod
	Workloads []CopiedWorkload
	// Quotas are those of the target that copies will be under, Asked what is counted of copies by
	// namespace beside objects and pods.
	Quotas []corev1.ResourceQuota
	Asked  map[string]corev1.ResourceList
	// Taken are node ports of copies that others have in the target.
	Taken []TakenPort
	// Blind are the webhooks of the target that refuse and have no backend.
	Blind []string

	// Objects that are copied, and what is in the way.
	Objects *copypreview.Inventory
	Claims  []Claim
	// Certified are the objects whose certificates get aliases, or have them.
	Certified []certificates.Certified
	// Uncovered are certificates that no one here issues.
	Uncovered []Uncovered
	Originals []client.Object
	// Networks of the source are not copied; one line for each.
	Networks []string
	// Unfreezable are the kinds to freeze that the source does not serve in namespaces.
	Unfreezable []string
	Freeze      bool
	Copies      int

	// Names lead to the source at first. Awaited lack an address in the target yet.
	Names    []v1alpha1.RedirectName
	Awaited  []string
	Problems []dnscutover.Problem
	// Places are where they lead now, by the title of the record.
	Places map[string]string
}

// Claim is the copy of a PersistentVolumeClaim.
type Claim struct {
	Object, Class string
	// Unprovided is why its copy is never bound; empty, if it can be.
	Unprovided string
}

// Uncovered is a certificate that is not good for an alias.
type Uncovered struct {
	Secret, Alias string
}

// Side is one of the clusters.
type Side struct {
	UID     string
	Version *version.Info
}

// Serving is the side that names lead to, as far as was written down.
func (s *Inventory) Serving() v1alpha1.ServingSide {
	if s.Remembered == nil {
		return v1alpha1.ServingSource
	}
	return cmp.Or(s.Remembered.Serving, v1alpha1.ServingSource)
}

// Dropped are names whose records an earlier run prepared, and that are not to move any more. They
// lead where they led.
func (s *Inventory) Dropped() []v1alpha1.RedirectName {
	wanted := slices.Clone(s.Awaited)
	for _, n := range s.Names {
		wanted = append(wanted, n.Name)
	}
	for _, p := range s.Problems {
		wanted = append(wanted, p.Name)
	}
	for i := range wanted {
		wanted[i] = strings.ToLower(strings.TrimSuffix(wanted[i], "."))
	}
	var out []v1alpha1.RedirectName
	for _, r := range s.Records {
		name := strings.ToLower(strings.TrimSuffix(r.Name, "."))
		if len(r.Values) > 0 && !slices.Contains(wanted, name) && s.Spec.keeps(name) {
			out = append(out, v1alpha1.RedirectName{Name: name, Type: r.Type, From: r.Values, To: r.Values})
		}
	}
	return out
}

// Counts are of names; if there are none, of clusters that serve.
func (s *Inventory) Counts() v1alpha1.Counts {
	c := v1alpha1.Counts{Total: len(s.Names)}
	if s.Serving() == v1alpha1.ServingTarget {
		c.Moved = c.Total
	}
	return c
}

func (s *Inventory) toExtend() []certificates.Certified {
	return slices.DeleteFunc(slices.Clone(s.Certified), func(c certificates.Certified) bool { return len(c.Secrets) == 0 })
}

func (s *Inventory) extended() []certificates.Certified {
	return slices.DeleteFunc(slices.Clone(s.Certified), func(c certificates.Certified) bool { return len(c.Added) == 0 })
}

func (s *Inventory) Copied() (objects, kinds int) {
	for _, c := range s.Objects.Counts {
		if objects += c.Copied; c.Copied > 0 {
			kinds++
		}
	}
	return objects, kinds
}
