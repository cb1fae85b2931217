package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/test/soak/model"
)

// domain is of all labels and annotations of replumb, also with more in front of it.
const domain = "replumb.dev"

// auditServices compares each Service with the model, field by field, but for its address.
func (r *report) auditServices() {
	for i := range r.Services {
		svc := &r.Services[i]
		key := keyOf(svc)
		if _, known := r.Model.Services[key]; known || slices.Contains(clusters(), key) || r.ours(svc) {
			continue
		}
		r.add(name("service", key), "is left over")
	}
	for _, key := range r.Model.ServiceKeys() {
		want, have := r.Model.Services[key].Object, r.services[key]
		if have == nil {
			r.add(name("service", key), "is lost")
			continue
		}
		if have.DeletionTimestamp != nil {
			r.add(name("service", key), "is being deleted")
		}
		for _, field := range differences(want.Spec, withoutAddress(want, have)) {
			r.add(name("service", key), "has another spec.%s", field)
		}
		r.sameMap(name("service", key), "label", want.Labels, have.Labels)
		r.sameMap(name("service", key), "annotation", want.Annotations, r.users(want, have))
	}
}

// withoutAddress is what a Service is like, without an address if the model says nothing of it.
func withoutAddress(want, have *corev1.Service) corev1.ServiceSpec {
	spec := *have.Spec.DeepCopy()
	if want.Spec.ClusterIP == "" {
		spec.ClusterIP, spec.ClusterIPs = "", nil
	}
	return spec
}

// users are the annotations of a Service without those that a migration may have there in the overlap.
func (r *report) users(want, have *corev1.Service) map[string]string {
	if r.Stage != Overlap {
		return have.Annotations
	}
	rest := maps.Clone(have.Annotations)
	maps.DeleteFunc(rest, func(key, _ string) bool {
		_, users := want.Annotations[key]
		return !users && key != v1alpha1.AnnotationStrategy && strings.Contains(key, domain)
	})
	return rest
}

func (r *report) sameMap(object, what string, want, have map[string]string) {
	for key, value := range want {
		if got, there := have[key]; !there {
			r.add(object, "has lost %s %s", what, key)
		} else if got != value {
			r.add(object, "has %s %s=%s instead of %s", what, key, got, value)
		}
	}
	for key := range have {
		if _, wanted := want[key]; !wanted {
			r.add(object, "has %s %s too much", what, key)
		}
	}
}

// differences names the fields in which two structs differ, as JSON calls them.
func differences(want, have any) []string {
	if equality.Semantic.DeepEqual(want, have) {
		return nil
	}
	w, h := fields(want), fields(have)
	var all []string
	for _, key := range slices.Sorted(maps.Keys(union(w, h))) {
		if string(w[key]) != string(h[key]) {
			all = append(all, fmt.Sprintf("%s (%s instead of %s)", key, orNothing(h[key]), orNothing(w[key])))
		}
	}
	return all
}

func orNothing(text json.RawMessage) string {
	if text == nil {
		return "nothing"
	}
	return string(text)
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func fields(v any) map[string]json.RawMessage {
	body, err := json.Marshal(v)
	all := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(body, &all)
	}
	if err != nil {
		panic(fmt.Sprintf("%T has no JSON: %v", v, err)) // a part of an object of the API
	}
	return all
}

// auditPlaces compares the addresses with what the migration should have made of them.
func (r *report) auditPlaces() {
	for _, key := range r.Model.ServiceKeys() {
		have := r.services[key]
		if have == nil {
			continue
		}
		place := r.Model.Place(key)
		if place == model.Nowhere {
			continue // which is part of its spec
		}
		if r.Was == nil && place != model.Anywhere {
			place = model.Anywhere
		}
		r.auditPlace(key, have.Spec, place)
	}
	for _, key := range clusters() {
		if have := r.services[key]; have != nil {
			r.auditPlace(key, have.Spec, model.Moves)
		} else {
			r.add(name("service", key), "is lost")
		}
	}
}

func (r *report) auditPlace(key model.Key, spec corev1.ServiceSpec, place model.Place) {
	address, err := netip.ParseAddr(spec.ClusterIP)
	was := r.Was[key]
	object := name("service", key)
	switch {
	case err != nil || !slices.Equal(spec.ClusterIPs, []string{spec.ClusterIP}):
		r.add(object, "has clusterIP %q and clusterIPs %q", spec.ClusterIP, spec.ClusterIPs)
	case place == model.Anywhere:
		// auditAddresses sees to it that it is its own, and in a range.
	case place == model.Keeps || r.Stage == RolledBack:
		if spec.ClusterIP != was {
			r.add(object, "is at %s instead of %s", address, was)
		}
	case !r.now().Contains(address):
		r.add(object, "is at %s, not in %s", address, r.now())
	}
}

func name(kind string, key model.Key) string { return kind + " " + key.String() }
