package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/workload"
)

// What labels and annotations of users begin with.
const (
	labelPrefix      = "soak.replumb.local/label-"
	annotationPrefix = "soak.replumb.local/note-"
)

func (g *Generator) createService() (Op, bool) {
	if len(g.Cluster.Services) >= maxServices-8 { // the rest is left for namespaces
		return Op{}, false
	}
	spaces := slices.DeleteFunc(g.Cluster.NamespaceNames(), func(n string) bool { return n == Steady })
	// Most go where there are pods to lead to.
	namespace := Churn
	if g.chance(3) {
		namespace, _ = oneOf(g, spaces)
	}
	s := g.newService(namespace)
	key := client.ObjectKeyFromObject(s.Object)
	return Op{
		Kind: CreateService, On: key, Detail: s.shape(), Writes: s.creations(),
		then: func(c *Cluster) { c.Services[key] = s },
	}, true
}

// shape says what a Service is like.
func (s *Service) shape() string {
	text := string(s.Object.Spec.Type)
	switch {
	case s.Object.Spec.ClusterIP == corev1.ClusterIPNone:
		text = "headless"
	case len(s.Slices) > 0:
		text = "without selector"
	case s.Object.Spec.SessionAffinity == corev1.ServiceAffinityClientIP:
		text += " with affinity"
	}
	return text + " " + names(s.Object.Spec.Ports)
}

// disposable are Services that anything may be done to.
func disposable(s *Service) bool { return s.Object.Namespace != Steady }

func (g *Generator) deleteService() (Op, bool) {
	s, ok := oneOf(g, g.services(disposable))
	if !ok {
		return Op{}, false
	}
	key := client.ObjectKeyFromObject(s.Object)
	op := Op{Kind: DeleteService, On: key, Writes: []Write{deletion(s.Object)}}
	for _, slice := range s.Slices {
		op.Writes = append(op.Writes, deletion(slice))
	}
	op.then = func(c *Cluster) {
		delete(c.Services, key)
		g.gone = append(g.gone, key)
	}
	return op, true
}

// leads are Services with a selector.
func leads(s *Service) bool { return len(s.Object.Spec.Selector) > 0 }

func (g *Generator) switchSelector() (Op, bool) {
	s, ok := oneOf(g, g.services(leads))
	if !ok {
		return Op{}, false
	}
	from, to := s.Object.Spec.Selector[LabelColour], blue
	if from == blue {
		to = green
	}
	return g.edit(SwitchSelector, s, from+" to "+to, func(svc *corev1.Service) { svc.Spec.Selector[LabelColour] = to }), true
}

func (g *Generator) addPort() (Op, bool) {
	s, ok := oneOf(g, g.services(func(s *Service) bool { return disposable(s) && leads(s) && len(s.Object.Spec.Ports) < maxPorts }))
	if !ok {
		return Op{}, false
	}
	g.serial++
	port := corev1.ServicePort{
		Name: fmt.Sprintf("p%d", g.serial), Protocol: corev1.ProtocolTCP, Port: int32(10000 + g.serial%10000),
		TargetPort: intstr.FromString("http"),
	}
	if s.Object.Spec.Type == corev1.ServiceTypeNodePort {
		port.NodePort = g.nextNodePort()
	}
	return g.edit(AddPort, s, port.Name, func(svc *corev1.Service) { svc.Spec.Ports = append(svc.Spec.Ports, port) }), true
}

func (g *Generator) removePort() (Op, bool) {
	s, ok := oneOf(g, g.services(func(s *Service) bool { return disposable(s) && leads(s) && len(s.Object.Spec.Ports) > 1 }))
	if !ok {
		return Op{}, false
	}
	at := g.random.IntN(len(s.Object.Spec.Ports))
	return g.edit(RemovePort, s, s.Object.Spec.Ports[at].Name, func(svc *corev1.Service) {
		svc.Spec.Ports = slices.Delete(svc.Spec.Ports, at, at+1)
	}), true
}

// everyService may get labels and annotations.
func everyService(*Service) bool { return true }

func (g *Generator) relabel() (Op, bool) {
	s, ok := oneOf(g, g.services(everyService))
	if !ok {
		return Op{}, false
	}
	value := strconv.Itoa(g.index)
	if key := g.toggled(s.Object.Labels, labelPrefix); key != "" {
		return g.edit(Relabel, s, key+" goes", func(svc *corev1.Service) { delete(svc.Labels, key) }), true
	}
	key := labelPrefix + strconv.Itoa(g.random.IntN(4))
	return g.edit(Relabel, s, key+"="+value, func(svc *corev1.Service) { put(&svc.Labels, key, value) }), true
}

func (g *Generator) annotate() (Op, bool) {
	s, ok := oneOf(g, g.services(everyService))
	if !ok {
		return Op{}, false
	}
	value := strconv.Itoa(g.index)
	if key := g.toggled(s.Object.Annotations, annotationPrefix); key != "" {
		return g.edit(Annotate, s, key+" goes", func(svc *corev1.Service) { delete(svc.Annotations, key) }), true
	}
	key := annotationPrefix + strconv.Itoa(g.random.IntN(4))
	return g.edit(Annotate, s, key+"="+value, func(svc *corev1.Service) { put(&svc.Annotations, key, value) }), true
}

// toggled is, one time in three, one of the keys that are there, to be taken away. One always stays: the patch that takes the last one that the
// model knows would take the whole map, with the keys of others.
func (g *Generator) toggled(all map[string]string, prefix string) string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if len(key) > len(prefix) && key[:len(prefix)] == prefix {
			keys = append(keys, key)
		}
	}
	if !g.chance(3) || len(keys) < 2 {
		return ""
	}
	key, _ := oneOf(g, keys)
	return key
}

func put(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

func (g *Generator) editEndpoints() (Op, bool) {
	s, ok := oneOf(g, g.services(func(s *Service) bool { return len(s.Slices) > 0 }))
	if !ok {
		return Op{}, false
	}
	key := client.ObjectKeyFromObject(s.Object)
	before := s.Slices[0]
	after := endpoints(key, s.Object.Spec.Ports, 1+g.random.IntN(100), 101+g.random.IntN(100))
	return Op{
		Kind: EditEndpoints, On: key, Detail: fmt.Sprintf("%s, %s", after.Endpoints[0].Addresses[0], after.Endpoints[1].Addresses[0]),
		Writes: []Write{patch(before, after)}, then: func(*Cluster) { s.Slices[0] = after },
	}, true
}

func (g *Generator) changeType() (Op, bool) {
	s, ok := oneOf(g, g.services(func(s *Service) bool { return disposable(s) && leads(s) && s.HasAddress() }))
	if !ok {
		return Op{}, false
	}
	types := []corev1.ServiceType{
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer,
	}
	types = slices.DeleteFunc(types, func(t corev1.ServiceType) bool {
		return t == s.Object.Spec.Type || (t == corev1.ServiceTypeNodePort && !g.portsLeft())
	})
	to, _ := oneOf(g, types)
	detail := fmt.Sprintf("%s to %s", s.Object.Spec.Type, to)
	return g.edit(ChangeType, s, detail, func(svc *corev1.Service) { retype(svc, to, g.nextNodePort) }), true
}

func (g *Generator) pin() (Op, bool) {
	s, ok := oneOf(g, g.services(func(s *Service) bool {
		return disposable(s) && s.HasAddress() && s.Object.Spec.Type != corev1.ServiceTypeLoadBalancer
	}))
	if !ok {
		return Op{}, false
	}
	if s.pinned() {
		return g.edit(Unpin, s, "", func(svc *corev1.Service) { delete(svc.Annotations, v1alpha1.AnnotationStrategy) }), true
	}
	return g.edit(Pin, s, "", func(svc *corev1.Service) {
		put(&svc.Annotations, v1alpha1.AnnotationStrategy, v1alpha1.StrategyPin)
	}), true
}

func (g *Generator) scale() (Op, bool) {
	key, _ := oneOf(g, g.Cluster.DeploymentKeys())
	d := g.Cluster.Deployments[key]
	least, most := bounds(key.Namespace)
	to := least + g.random.Int32N(most-least+1)
	if to == replicas(d) {
		return Op{}, false
	}
	return g.roll(Scale, d, fmt.Sprintf("%d to %d", replicas(d), to), func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(to) }), true
}

func (g *Generator) restart() (Op, bool) {
	key, _ := oneOf(g, g.Cluster.DeploymentKeys())
	return g.roll(Restart, g.Cluster.Deployments[key], "", func(d *appsv1.Deployment) {
		put(&d.Spec.Template.Annotations, AnnotationRestarted, strconv.Itoa(g.index))
	}), true
}

func (g *Generator) createNamespace() (Op, bool) {
	if len(g.Cluster.Namespaces) >= 2+maxNamespaces || len(g.Cluster.Services) >= maxServices-4 {
		return Op{}, false
	}
	g.serial++
	name := fmt.Sprintf("n%04d", g.serial)
	op := Op{Kind: CreateNamespace, On: Key{Namespace: name}, Writes: []Write{creation(workload.Namespace(name))}}
	var made []*Service
	for range 1 + g.random.IntN(4) {
		s := g.newService(name)
		made, op.Writes = append(made, s), append(op.Writes, s.creations()...)
	}
	op.Detail = fmt.Sprintf("with %d services", len(made))
	op.then = func(c *Cluster) {
		c.Namespaces[name] = true
		for _, s := range made {
			c.Services[client.ObjectKeyFromObject(s.Object)] = s
		}
	}
	return op, true
}

func (g *Generator) deleteNamespace() (Op, bool) {
	name, ok := oneOf(g, slices.DeleteFunc(g.Cluster.NamespaceNames(), func(n string) bool { return n == Steady || n == Churn }))
	if !ok {
		return Op{}, false
	}
	return Op{
		Kind: DeleteNamespace, On: Key{Namespace: name}, Writes: []Write{deletion(workload.Namespace(name))},
		then: func(c *Cluster) {
			delete(c.Namespaces, name)
			maps.DeleteFunc(c.Services, func(k Key, _ *Service) bool { return k.Namespace == name })
		},
	}, true
}
