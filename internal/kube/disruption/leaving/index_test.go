package leaving

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestIndex finds what a look at every Service finds.
func TestIndex(t *testing.T) {
	service := func(namespace, name string, selector map[string]string) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Selector: selector}}
	}
	all := []corev1.Service{
		service("shop", "web", map[string]string{"app": "web"}), service("shop", "front", map[string]string{"app": "web", "tier": "front"}),
		service("shop", "back", map[string]string{"app": "web", "tier": "back"}), service("shop", "none", nil),
		service("other", "web", map[string]string{"app": "web"}), service("shop", "tier", map[string]string{"tier": "front"}),
	}
	x := NewIndex(all)
	for _, pod := range []map[string]string{
		{"app": "web"}, {"app": "web", "tier": "front"}, {"app": "web", "tier": "back", "a": "b"}, {"tier": "front"}, {"app": "cart"}, nil,
	} {
		for _, namespace := range []string{"shop", "other", "third"} {
			within := slices.DeleteFunc(slices.Clone(all), func(s corev1.Service) bool { return s.Namespace != namespace })
			got, want := names(x.Selecting(namespace, pod)), names(Selecting(within, pod))
			if !slices.Equal(got, want) {
				t.Errorf("%s in %s: %q, want %q", fmt.Sprint(pod), namespace, got, want)
			}
		}
	}
}

func names(services []corev1.Service) []string {
	var all []string
	for i := range services {
		all = append(all, services[i].Name)
	}
	slices.Sort(all)
	return all
}
