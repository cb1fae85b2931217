// Package pull has the image of replumb's own pods, and its pull Secrets.
package pull

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
)

// Image is what replumb's own pods run. One without a name is none.
type Image struct {
	Name string
	// Secrets are those, by name, of the namespace of the pods that nodes pull it with.
	Secrets []string
}

// Named is the image that a Migration names for all pods of its own, and its pull secrets.
func Named(s *v1alpha1.MigrationSpec) Image {
	return Image{Name: s.Image, Secrets: s.ImagePullSecrets}
}

// Or is the image with the name and the Secrets of another one, each where it has none itself.
func (i Image) Or(other Image) Image {
	i.Name = cmp.Or(i.Name, other.Name)
	if len(i.Secrets) == 0 {
		i.Secrets = other.Secrets
	}
	return i
}

// References are what the spec of a pod says of the Secrets; nil, if there are none.
func (i Image) References() []corev1.LocalObjectReference {
	var all []corev1.LocalObjectReference
	for _, name := range i.Secrets {
		all = append(all, corev1.LocalObjectReference{Name: name})
	}
	return all
}

// Absent finds missing Secrets for a Check. It reads metadata alone, and passes over Secrets that
// the user may not get.
func (i Image) Absent(ctx context.Context, c client.Reader) ([]findings.Result, error) {
	switch {
	case i.Name == "":
		return findings.Skip("no image of replumb is to run"), nil
	case len(i.Secrets) == 0:
		return findings.Skip("the Migration names no pull secrets"), nil
	}
	var out []findings.Result
	for _, name := range i.Secrets {
		key := client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: name}
		secret := &metav1.PartialObjectMetadata{}
		secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		err := c.Get(ctx, key, secret)
		switch {
		case apierrors.IsNotFound(err):
			out = append(out, findings.Failed("Secret "+key.String(), "secret %s, which spec.imagePullSecrets names, does not exist", key))
		case err != nil && !apierrors.IsForbidden(err):
			return nil, fmt.Errorf("secret %s: %w", key, err)
		}
	}
	return out, nil
}

// Needed is Absent for pods that have to run. otherwise says how they can be done without; empty,
// if they cannot.
func (i Image) Needed(ctx context.Context, c client.Reader, otherwise string) ([]findings.Result, error) {
	if i.Name != "" {
		return i.Absent(ctx, c)
	}
	return []findings.Result{findings.Failed("", "spec.image is empty, and this build of replumb has no image of its own: "+
		"name an image of replumb that the nodes can pull%s", otherwise)}, nil
}

// Check is every kind's check of what Absent and Needed find.
func Check[In any](code string, absent func(In) []findings.Result) findings.Check[In] {
	return findings.Check[In]{
		Code:     code,
		Severity: findings.Blocking,
		Run:      absent,
		Claim:    "pods of replumb have an image, and the pull secrets that the Migration names exist",
		Why: "a kubelet only warns of a pull secret that is missing and goes on without: pods of replumb wait for an image that the " +
			"registry does not give them",
		Fix: "name an image, where that is empty; make a secret before apply: kubectl create namespace " + v1alpha1.SystemNamespace +
			", if there is none, then kubectl -n " + v1alpha1.SystemNamespace + " create secret docker-registry NAME; or name the one " +
			"that is there",
	}
}
