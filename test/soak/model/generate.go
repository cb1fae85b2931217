package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/lab/workload"
)

// Bounds of what there is at a time, as far as two cores can carry it.
const (
	maxServices   = 36
	maxNamespaces = 3 // beside those that last
	maxPorts      = 5
	// Node ports come from where the API server takes none for others as long as it has a choice (KEP-3668).
	firstNodePort, lastNodePort = 30000, 30085
	// maxNodePortServices leave some free, also while those of a whole namespace are drawn.
	maxNodePortServices = 12
)

// Generator draws operations. Each must be settled by Done or Refused before the next is drawn.
type Generator struct {
	Cluster *Cluster

	random *rand.Rand
	index  int
	// serial numbers what is made, so that no name comes twice but those of gone Services, some of which are made again.
	serial   int
	gone     []Key
	nodePort int32
	kinds    []weighted
}

// weighted is a kind of operation, with how often it is drawn. It is false if there is nothing to do that to now.
type weighted struct {
	weight int
	draw   func(*Generator) (Op, bool)
}

// New begins with what Base makes.
func New(seed uint64) *Generator {
	g := &Generator{
		Cluster: &Cluster{
			Namespaces: map[string]bool{Steady: true, Churn: true}, Services: map[Key]*Service{}, Deployments: map[Key]*appsv1.Deployment{},
		},
		random: rand.New(rand.NewPCG(seed, 1)), nodePort: firstNodePort - 1,
		kinds: []weighted{
			{14, (*Generator).createService},
			{11, (*Generator).deleteService},
			{14, (*Generator).switchSelector},
			{8, (*Generator).addPort},
			{6, (*Generator).removePort},
			{8, (*Generator).relabel},
			{5, (*Generator).annotate},
			{6, (*Generator).editEndpoints},
			{7, (*Generator).changeType},
			{4, (*Generator).pin},
			{10, (*Generator).scale},
			{4, (*Generator).restart},
			{4, (*Generator).createNamespace},
			{3, (*Generator).deleteNamespace},
		},
	}
	for _, app := range SteadyApps() {
		g.base(Steady, app, 2)
		key := Key{Namespace: Steady, Name: app}
		svc := service(key, selector(app, blue), basicPorts()...)
		if app == SteadyNodePort {
			retype(svc, corev1.ServiceTypeNodePort, g.nextNodePort)
		}
		g.Cluster.Services[key] = &Service{Object: svc, born: -1, touched: -1}
	}
	g.base(Churn, churnApp, 1)
	return g
}

// SteadyApps are the apps that are probed, and the names of their Services.
func SteadyApps() []string { return []string{"cart", SteadyNodePort} }

// SteadyNodePort is the one that has node ports beside its address.
const SteadyNodePort = "front"

const churnApp = "mill"

func (g *Generator) base(namespace, app string, replicas int32) {
	for _, colour := range []string{blue, green} {
		d := Deployment(namespace, app, colour, replicas)
		g.Cluster.Deployments[client.ObjectKeyFromObject(d)] = d
	}
}

// Base are the objects of the model as they are now, in an order in which they can be made.
func (g *Generator) Base() []client.Object {
	var all []client.Object
	for _, name := range g.Cluster.NamespaceNames() {
		all = append(all, workload.Namespace(name))
	}
	for _, key := range g.Cluster.DeploymentKeys() {
		all = append(all, g.Cluster.Deployments[key].DeepCopy())
	}
	for _, key := range g.Cluster.ServiceKeys() {
		all = append(all, g.Cluster.Services[key].Object.DeepCopy())
	}
	return all
}

// Index is that of the next operation.
func (g *Generator) Index() int { return g.index }

// Mark says that a migration begins: what is made or changed from now on may be on either side of it.
func (g *Generator) Mark() { g.Cluster.marked = g.index }

// Next draws an operation.
func (g *Generator) Next() Op {
	total := 0
	for _, k := range g.kinds {
		total += k.weight
	}
	for {
		n := g.random.IntN(total)
		for _, k := range g.kinds {
			if n -= k.weight; n >= 0 {
				continue
			}
			if op, ok := k.draw(g); ok {
				op.Index = g.index
				g.index++
				return op
			}
			break
		}
	}
}

// Done says that all writes of an operation were made.
func (g *Generator) Done(op Op) { op.then(g.Cluster) }

// Refused says that the first write of an operation was refused: all is as it was.
func (*Generator) Refused(Op) {}

// services are those that a filter leaves, in order.
func (g *Generator) services(keep func(*Service) bool) []*Service {
	var all []*Service
	for _, key := range g.Cluster.ServiceKeys() {
		if s := g.Cluster.Services[key]; keep(s) {
			all = append(all, s)
		}
	}
	return all
}

// oneOf draws an element; false, if there is none.
func oneOf[T any](g *Generator, all []T) (one T, ok bool) {
	if len(all) == 0 {
		return one, false
	}
	return all[g.random.IntN(len(all))], true
}

func (g *Generator) chance(n int) bool { return g.random.IntN(n) == 0 }

// nextNodePort goes round, so that a port that was just released, perhaps with its namespace a while later, does not come again soon.
func (g *Generator) nextNodePort() int32 {
	used := map[int32]bool{}
	for _, s := range g.Cluster.Services {
		for _, p := range s.Object.Spec.Ports {
			used[p.NodePort] = true
		}
	}
	for {
		if g.nodePort++; g.nodePort > lastNodePort {
			g.nodePort = firstNodePort
		}
		if !used[g.nodePort] {
			return g.nodePort
		}
	}
}

func (g *Generator) portsLeft() bool {
	return len(g.services(func(s *Service) bool { return s.Object.Spec.Type == corev1.ServiceTypeNodePort })) < maxNodePortServices
}

// name is one that none had before or, sometimes, that of a Service of the namespace that is gone: to its clients it is the same one.
func (g *Generator) name(namespace string) Key {
	if g.chance(4) {
		again := slices.DeleteFunc(slices.Clone(g.gone), func(k Key) bool { return k.Namespace != namespace })
		if key, ok := oneOf(g, again); ok {
			g.gone = slices.DeleteFunc(g.gone, func(k Key) bool { return k == key })
			return key
		}
	}
	g.serial++
	return Key{Namespace: namespace, Name: fmt.Sprintf("s%04d", g.serial)}
}

// newService draws one of any shape.
func (g *Generator) newService(namespace string) *Service {
	key := g.name(namespace)
	ports := basicPorts()
	g.random.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	ports = ports[:1+g.random.IntN(len(ports))]
	colour, _ := oneOf(g, []string{blue, green})
	svc := service(key, selector(churnApp, colour), ports...)
	s := &Service{Object: svc, born: g.index, touched: g.index}
	switch n := g.random.IntN(16); {
	case n < 6:
	case n < 8:
		affine(svc)
	case n < 10 && g.portsLeft():
		retype(svc, corev1.ServiceTypeNodePort, g.nextNodePort)
	case n < 11:
		retype(svc, corev1.ServiceTypeLoadBalancer, g.nextNodePort)
	case n < 13:
		headless(svc)
	case n < 15:
		svc.Spec.Selector = nil
		s.Slices = append(s.Slices, endpoints(key, ports, 1+g.random.IntN(100), 101+g.random.IntN(100)))
	default:
		s.Object = external(key)
	}
	return s
}

// creations are the writes that make a Service.
func (s *Service) creations() []Write {
	writes := []Write{creation(s.Object)}
	for _, slice := range s.Slices {
		writes = append(writes, creation(slice))
	}
	return writes
}

// edit is an operation that changes a Service.
func (g *Generator) edit(kind Kind, s *Service, detail string, change func(*corev1.Service)) Op {
	after := s.Object.DeepCopy()
	change(after)
	touched := s.touched
	if kind == ChangeType || kind == Pin || kind == Unpin {
		touched = g.index
	}
	return Op{
		Kind: kind, On: client.ObjectKeyFromObject(after), Detail: detail, Writes: []Write{patch(s.Object, after)},
		then: func(*Cluster) { s.Object, s.touched = after, touched },
	}
}

// roll is an operation that changes a Deployment.
func (*Generator) roll(kind Kind, d *appsv1.Deployment, detail string, change func(*appsv1.Deployment)) Op {
	after := d.DeepCopy()
	change(after)
	key := client.ObjectKeyFromObject(after)
	return Op{
		Kind: kind, On: key, Detail: detail, Writes: []Write{patch(d, after)},
		then: func(c *Cluster) { c.Deployments[key] = after },
	}
}

// bounds of the replicas of Deployments. What is probed always has two, one on each node that lasts.
func bounds(namespace string) (least, most int32) {
	if namespace == Steady {
		return 2, 3
	}
	return 1, 4
}

func replicas(d *appsv1.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }

func names(ports []corev1.ServicePort) string {
	var all []string
	for _, p := range ports {
		all = append(all, p.Name)
	}
	return strings.Join(all, ",")
}
