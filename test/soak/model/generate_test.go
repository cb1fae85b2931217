package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// many is how many operations the invariants have to outlast.
const many = 10_000

// store is an API server that knows nothing of what it stores.
type store map[string]any

func (s store) id(o client.Object) string {
	return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
}

// do makes a write, and fails for one that an API server would refuse.
func (s store) do(w Write) error {
	id := s.id(w.Object)
	have, there := s[id]
	switch {
	case w.Verb == Create && there:
		return fmt.Errorf("%s is there already", id)
	case w.Verb != Create && !there:
		return fmt.Errorf("there is no %s to %s", id, w.Verb)
	case w.Verb == Create:
		s[id] = decode(encode(w.Object))
	case w.Verb == Delete:
		s.remove(w.Object)
	default:
		s[id] = merge(have, decode(w.Patch))
	}
	return nil
}

// remove takes with a namespace what is in it.
func (s store) remove(o client.Object) {
	delete(s, s.id(o))
	if _, yes := o.(*corev1.Namespace); yes {
		maps.DeleteFunc(s, func(id string, _ any) bool { return strings.Contains(id, " "+o.GetName()+"/") })
	}
}

func decode(data []byte) any {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		panic(err)
	}
	return v
}

// merge is RFC 7386.
func merge(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	merged, _ := target.(map[string]any)
	merged = maps.Clone(merged)
	if merged == nil {
		merged = map[string]any{}
	}
	for key, value := range p {
		if value == nil {
			delete(merged, key)
		} else {
			merged[key] = merge(merged[key], value)
		}
	}
	return merged
}

// run has a generator make operations, of which a part is refused as a freeze may do.
func run(t *testing.T, seed uint64, n int, each func(*Generator, Op)) (*Generator, store) {
	t.Helper()
	g := New(seed)
	s := store{}
	for _, o := range g.Base() {
		if err := s.do(creation(o)); err != nil {
			t.Fatal(err)
		}
	}
	refusals := rand.New(rand.NewPCG(seed, 99))
	for range n {
		op := g.Next()
		if op.MayBeRefused(Moving) && refusals.IntN(5) == 0 {
			g.Refused(op)
			continue
		}
		for _, w := range op.Writes {
			if err := s.do(w); err != nil {
				t.Fatalf("seed %d, %s: %v", seed, op, err)
			}
		}
		g.Done(op)
		if each != nil {
			each(g, op)
		}
	}
	return g, s
}

func TestSameSeedSameOperations(t *testing.T) {
	listing := func(seed uint64) []string {
		var all []string
		run(t, seed, 500, func(_ *Generator, op Op) {
			for _, w := range op.Writes {
				all = append(all, fmt.Sprintf("%s: %s %s %s", op, w.Verb, encode(w.Object), w.Patch))
			}
		})
		return all
	}
	if !slices.Equal(listing(7), listing(7)) {
		t.Error("the same seed gives other operations")
	}
	if slices.Equal(listing(7), listing(8)) {
		t.Error("another seed gives the same operations")
	}
}

// TestModelIsWhatTheWritesMake holds the model to what a store has that was sent the writes.
func TestModelIsWhatTheWritesMake(t *testing.T) {
	for seed := range uint64(3) {
		g, s := run(t, seed, many/3, nil)
		want := store{}
		for _, o := range g.Base() {
			want[want.id(o)] = decode(encode(o))
		}
		for _, key := range g.Cluster.ServiceKeys() {
			for _, slice := range g.Cluster.Services[key].Slices {
				want[want.id(slice)] = decode(encode(slice))
			}
		}
		if !slices.Equal(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(s))) {
			t.Errorf("seed %d: the model has\n%v\nand the store\n%v", seed, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(s)))
		}
		for id, have := range s {
			if !reflect.DeepEqual(have, want[id]) {
				t.Errorf("seed %d: %s is\n%v\nand by the model\n%v", seed, id, have, want[id])
			}
		}
	}
}

func TestInvariants(t *testing.T) {
	kinds := map[Kind]int{}
	places := map[Place]int{}
	types := map[corev1.ServiceType]int{}
	again := map[Key]int{}
	run(t, 42, many, func(g *Generator, op Op) {
		kinds[op.Kind]++
		if op.Kind == CreateService {
			again[op.On]++
		}
		if op.Index%500 == 0 {
			g.Mark()
		}
		requireSteady(t, g, op)
		requireFit(t, g, op)
		for key, s := range g.Cluster.Services {
			places[g.Cluster.Place(key)]++
			types[s.Object.Spec.Type]++
		}
	})
	for _, k := range []Kind{
		CreateService, DeleteService, SwitchSelector, AddPort, RemovePort, Relabel, Annotate, EditEndpoints, ChangeType, Pin, Unpin, Scale,
		Restart, CreateNamespace, DeleteNamespace,
	} {
		if kinds[k] < many/200 {
			t.Errorf("%d operations are of kind %s", kinds[k], k)
		}
	}
	for _, p := range []Place{Nowhere, Moves, Keeps, Anywhere} {
		if places[p] == 0 {
			t.Errorf("no Service was ever %s", p)
		}
	}
	for _, typ := range []corev1.ServiceType{
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName,
	} {
		if types[typ] == 0 {
			t.Errorf("no Service was ever of type %s", typ)
		}
	}
	if !slices.ContainsFunc(slices.Collect(maps.Values(again)), func(n int) bool { return n > 1 }) {
		t.Error("no name was given again")
	}
}

// requireSteady fails the test for what an operation has done to what is probed that may lose a request.
func requireSteady(t *testing.T, g *Generator, op Op) {
	t.Helper()
	if op.On.Namespace == Steady && !slices.Contains([]Kind{SwitchSelector, Relabel, Annotate, Scale, Restart}, op.Kind) {
		t.Fatalf("%s", op)
	}
	for _, app := range SteadyApps() {
		s := g.Cluster.Services[Key{Namespace: Steady, Name: app}]
		if s == nil || len(s.Object.Spec.Ports) != 3 || !s.HasAddress() || s.pinned() {
			t.Fatalf("after %s: service %s is %+v", op, app, s)
		}
		found := 0
		for key, d := range g.Cluster.Deployments {
			if key.Namespace == Steady && labels.SelectorFromSet(s.Object.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
				found++
				if replicas(d) < 2 || d.Spec.Template.Spec.Tolerations != nil {
					t.Fatalf("after %s: deployment %s has %d replicas", op, key, replicas(d))
				}
			}
		}
		if found != 1 {
			t.Fatalf("after %s: service %s selects %d deployments", op, app, found)
		}
	}
}

// requireFit fails the test for what no API server would take, or no two cores could carry.
func requireFit(t *testing.T, g *Generator, op Op) {
	t.Helper()
	nodePorts := map[int32]Key{}
	for key, s := range g.Cluster.Services {
		spec := s.Object.Spec
		if !g.Cluster.Namespaces[key.Namespace] || client.ObjectKeyFromObject(s.Object) != key {
			t.Fatalf("after %s: service %s of no namespace", op, key)
		}
		if len(spec.Ports) == 0 != (spec.Type == corev1.ServiceTypeExternalName) {
			t.Fatalf("after %s: %s service %s has %d ports", op, spec.Type, key, len(spec.Ports))
		}
		seen := map[string]bool{}
		for _, p := range spec.Ports {
			number := fmt.Sprint(p.Protocol, p.Port)
			if seen[p.Name] || seen[number] || p.Port < 1 || p.Port > 65535 {
				t.Fatalf("after %s: service %s has port %s %s twice", op, key, p.Name, number)
			}
			seen[p.Name], seen[number] = true, true
			if (p.NodePort != 0) != (spec.Type == corev1.ServiceTypeNodePort) {
				t.Fatalf("after %s: %s service %s has node port %d", op, spec.Type, key, p.NodePort)
			}
			if other, taken := nodePorts[p.NodePort]; taken && p.NodePort != 0 {
				t.Fatalf("after %s: services %s and %s have node port %d", op, key, other, p.NodePort)
			}
			nodePorts[p.NodePort] = key
		}
	}
	if len(g.Cluster.Services) > maxServices+4 || len(g.Cluster.Namespaces) > 2+maxNamespaces {
		t.Fatalf("after %s: %d services in %d namespaces", op, len(g.Cluster.Services), len(g.Cluster.Namespaces))
	}
}

func TestRefusedLeavesTheModel(t *testing.T) {
	g := New(3)
	for range 300 {
		before := dump(g)
		op := g.Next()
		g.Refused(op)
		if after := dump(g); after != before {
			t.Fatalf("%s was refused, and the model went from\n%s\nto\n%s", op, before, after)
		}
		op = g.Next()
		g.Done(op)
		if changed := dump(g) != before; !changed {
			t.Fatalf("%s was made, and the model is as it was", op)
		}
	}
}

func dump(g *Generator) string {
	var text strings.Builder
	for _, o := range g.Base() {
		text.Write(encode(o))
	}
	for _, key := range g.Cluster.ServiceKeys() {
		for _, slice := range g.Cluster.Services[key].Slices {
			text.Write(encode(slice))
		}
	}
	return text.String()
}

func TestPatchesSayWhatChangesAndNothingElse(t *testing.T) {
	run(t, 11, 1000, func(_ *Generator, op Op) {
		if op.Kind != Relabel && op.Kind != SwitchSelector {
			return
		}
		body := string(op.Writes[0].Patch)
		if strings.Contains(body, `"spec"`) != (op.Kind == SwitchSelector) || strings.Contains(body, "clusterIP") ||
			strings.Contains(body, "ports") || strings.Contains(body, "status") {
			t.Errorf("%s is written as %s", op, body)
		}
	})
}

func TestPlaces(t *testing.T) {
	made := func(change func(*Service)) *Service {
		s := &Service{Object: service(Key{Namespace: Churn, Name: "x"}, selector("mill", blue), basicPorts()...)}
		if change != nil {
			change(s)
		}
		return s
	}
	for name, test := range map[string]struct {
		service *Service
		want    Place
	}{
		"plain":             {made(nil), Moves},
		"node ports":        {made(func(s *Service) { retype(s.Object, corev1.ServiceTypeNodePort, func() int32 { return 30000 }) }), Moves},
		"headless":          {made(func(s *Service) { headless(s.Object) }), Nowhere},
		"external":          {&Service{Object: external(Key{Name: "x"})}, Nowhere},
		"load balancer":     {made(func(s *Service) { retype(s.Object, corev1.ServiceTypeLoadBalancer, nil) }), Keeps},
		"pinned":            {made(func(s *Service) { s.Object.Annotations["replumb.dev/strategy"] = "pin" }), Keeps},
		"made meanwhile":    {made(func(s *Service) { s.born, s.touched = 12, 12 }), Anywhere},
		"changed meanwhile": {made(func(s *Service) { s.touched = 10 }), Anywhere},
		"changed before":    {made(func(s *Service) { s.touched = 9 }), Moves},
	} {
		t.Run(name, func(t *testing.T) {
			key := client.ObjectKeyFromObject(test.service.Object)
			c := &Cluster{Services: map[Key]*Service{key: test.service}, marked: 10}
			if got := c.Place(key); got != test.want {
				t.Errorf("it is %s, want %s", got, test.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	never := []Kind{CreateService, Relabel, Annotate, EditEndpoints, Scale, Restart, CreateNamespace, DeleteNamespace}
	moving := []Kind{SwitchSelector, AddPort, RemovePort}
	always := []Kind{DeleteService, ChangeType, Pin, Unpin}
	for _, k := range slices.Concat(never, moving, always) {
		want := map[Stage]bool{
			Quiet: false, Moving: !slices.Contains(never, k), Overlap: slices.Contains(always, k),
		}
		for stage, may := range want {
			if got := (Op{Kind: k}).MayBeRefused(stage); got != may {
				t.Errorf("%s may be refused while %s: %v, want %v", k, stage, got, may)
			}
		}
	}
}
