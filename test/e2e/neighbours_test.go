package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// What software that watches Services is given to watch: Ingresses and IngressRoutes of Traefik, a Service with an address by MetalLB, a
// Rollout that switches a Service to and fro, and what Flux applies.
const (
	neighbourObjects = `
apiVersion: traefik.io/v1alpha1
kind: Middleware
metadata: {namespace: shop, name: strip}
spec: {stripPrefix: {prefixes: [/front, /cart, /catalog, /payments, /colour]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  namespace: shop
  name: shop
  annotations: {traefik.ingress.kubernetes.io/router.middlewares: shop-strip@kubernetescrd}
spec:
  ingressClassName: traefik
  rules:
    - http:
        paths:
          - {path: /front, pathType: Prefix, backend: {service: {name: front, port: {number: 80}}}}
          - {path: /cart, pathType: Prefix, backend: {service: {name: cart, port: {number: 80}}}}
---
apiVersion: traefik.io/v1alpha1
kind: IngressRoute
metadata: {namespace: shop, name: shop}
spec:
  entryPoints: [web]
  routes:
    - {kind: Rule, match: "PathPrefix(` + "`/catalog`" + `)", middlewares: [{name: strip}], services: [{name: catalog, port: 80}]}
    - {kind: Rule, match: "PathPrefix(` + "`/payments`" + `)", middlewares: [{name: strip}], services: [{name: payments, port: 80}]}
    - {kind: Rule, match: "PathPrefix(` + "`/colour`" + `)", middlewares: [{name: strip}], services: [{name: colour, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: balanced}
spec:
  type: LoadBalancer
  selector: {app.kubernetes.io/name: front}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: colour}
spec:
  selector: {app: colour}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: colour-preview}
spec:
  selector: {app: colour}
  ports: [{name: http, port: 80, targetPort: http}]
`
	neighbourFlux = `apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {namespace: %[1]s, name: shop}
spec:
  interval: 10s
  url: oci://%[2]s/%[3]s
  ref: {tag: main}
  layerSelector: {mediaType: application/vnd.cncf.flux.content.v1.tar+gzip, operation: extract}
  secretRef: {name: registry}
  certSecretRef: {name: registry-ca}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {namespace: %[1]s, name: shop}
spec:
  interval: 10s
  retryInterval: 5s
  prune: true
  path: ./
  sourceRef: {kind: OCIRepository, name: shop}
`
	neighbourArtifact = "shop/objects"
	// What a team has in its repository: a Service without an address of its own, and one by whose labels Flux is seen to work.
	neighbourFiles = `apiVersion: v1
kind: Service
metadata: {namespace: shop, name: by-flux, labels: {round: "%d"}}
spec:
  selector: {app.kubernetes.io/name: cart}
  ports: [{name: http, port: 80, targetPort: http}]
`
)

// neighbourhood is a cluster with all of them.
type neighbourhood struct {
	*inCluster
	outpost traffic.Outpost
	// traefik and balanced are the addresses that MetalLB has given.
	traefik, balanced netip.Addr
}

// withNeighbours is a topology that has them all.
func withNeighbours(topology lab.Topology) lab.Topology {
	topology.Edge, topology.Registry = true, "registry.lab.example"
	topology.With = []lab.Addon{lab.Traefik, lab.MetalLB, lab.MetricsServer, lab.ArgoRollouts, lab.Flux}
	return topology
}

// newNeighbours opens the shop and gives each neighbour something to watch.
func newNeighbours(t *testing.T, l *lab.Lab) *neighbourhood {
	t.Helper()
	if _, err := openShop(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	n := &neighbourhood{inCluster: &inCluster{T: t, l: l}}
	n.apply(neighbourObjects)
	if n.has(lab.ArgoRollouts) {
		n.rollOut(0)
	}
	n.publish(0)
	if n.has(lab.Flux) {
		n.trustRegistry()
		n.apply(fmt.Sprintf(neighbourFlux, lab.FluxNamespace, l.Registry().Host, neighbourArtifact))
	}
	n.traefik = n.addressOf(lab.TraefikNamespace, lab.TraefikService)
	n.balanced = n.addressOf(shopNamespace, "balanced")
	edge := l.Edge()
	m, err := l.Machine(edge.Bastion.Machine)
	must(t, err)
	n.outpost = traffic.Outpost{
		Name: edge.Bastion.Machine, Command: m.Command, Client: edge.Bastion.Client, Token: edge.Bastion.Token, CA: edge.Bastion.CA,
	}
	return n
}

// addressOf waits for the address that MetalLB gives a Service.
func (n *neighbourhood) addressOf(namespace, name string) (address netip.Addr) {
	n.Helper()
	n.await(name+" has an address outside", func() error {
		s, err := n.l.Client().CoreV1().Services(namespace).Get(n.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(s.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("it has none")
		}
		address, err = netip.ParseAddr(s.Status.LoadBalancer.Ingress[0].IP)
		return err
	})
	return address
}

// rollOut gives the Rollout another template, for which it makes pods that colour is led to once they are ready.
func (n *neighbourhood) rollOut(round int) {
	n.Helper()
	n.apply(n.rollout(round))
}

// rollout is the Rollout with the template of a round.
func (n *neighbourhood) rollout(round int) string {
	n.Helper()
	echo := workload.Echo{Namespace: shopNamespace, Name: "colour", PartOf: "rollout", Replicas: 1}
	template := echo.Deployment().Spec.Template
	template.Labels = map[string]string{"app": "colour"}
	template.Annotations = map[string]string{"round": fmt.Sprint(round)}
	template.Spec.TopologySpreadConstraints = nil
	rollout, err := json.Marshal(map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
		"metadata": map[string]any{"namespace": shopNamespace, "name": "colour"},
		"spec": map[string]any{
			"replicas": 1, "selector": map[string]any{"matchLabels": template.Labels}, "template": template,
			// The controllers of Rollouts and of endpoints hear of a pod's readiness each for itself. Promoted at once, a Service has been led to a pod
			// that the latter took for unready, and Traefik dropped its router.
			"strategy": map[string]any{"blueGreen": map[string]any{
				"activeService": "colour", "previewService": "colour-preview", "autoPromotionSeconds": 5, "scaleDownDelaySeconds": 30,
			}},
		},
	})
	must(n, err)
	return string(rollout)
}

// colour is the revision of pods that a Service is led to.
func (n *neighbourhood) colour() (string, error) {
	s, err := n.l.Client().CoreV1().Services(shopNamespace).Get(n.Context(), "colour", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if hash := s.Spec.Selector["rollouts-pod-template-hash"]; hash != "" {
		return hash, nil
	}
	return "", errors.New("the Service is led to no revision")
}

// publish is what a merge to main leads to in the artifact that Flux applies.
func (n *neighbourhood) publish(round int) {
	n.Helper()
	if !n.has(lab.Flux) {
		return
	}
	files := fstest.MapFS{"shop.yaml": {Data: fmt.Appendf(nil, neighbourFiles, round), Mode: 0o644}}
	must(n, n.l.Addons().PushFiles(n.Context(), files, neighbourArtifact+":main"))
}

// has tells whether the lab was brought up with a neighbour.
func (n *neighbourhood) has(a lab.Addon) bool { return slices.Contains(n.l.Topology.With, a) }

// fluxed fails unless Flux, if there is one, has applied a round.
func (n *neighbourhood) fluxed(round int) error {
	if !n.has(lab.Flux) {
		return nil
	}
	s, err := n.l.Client().CoreV1().Services(shopNamespace).Get(n.Context(), "by-flux", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if s.Labels["round"] != fmt.Sprint(round) {
		return fmt.Errorf("it is of round %s", s.Labels["round"])
	}
	return nil
}

// behindTraefik are the paths that Traefik leads to the shop. Those behind colour are of the Rollout.
func (n *neighbourhood) behindTraefik() []string {
	paths := []string{"front", "cart", "catalog", "payments"}
	if n.has(lab.ArgoRollouts) {
		paths = append(paths, "colour")
	}
	return paths
}

// callFromOutside starts what calls all of them from outside, once each answers there.
func (n *neighbourhood) callFromOutside(perPath, balanced float64) *shop {
	n.Helper()
	watch, err := traffic.Start(n.Context(), n.l.Client(), nil)
	must(n, err)
	n.Cleanup(watch.Stop)
	const metrics = 10
	calls := traffic.CallNeighbours(n.traefik.String(), n.behindTraefik(), perPath, traffic.Callee{Name: "front", Address: n.balanced.String()}, balanced).
		AndAggregated(n.outpost, n.l.Edge().API, lab.MetricsPath+"/nodes", metrics)
	must(n, watch.AddOutside(n.Context(), n.outpost, calls))
	return &shop{watch: watch}
}

// TestNeighboursWork sees that what the lab has of software that watches Services does what it is there for.
func TestNeighboursWork(t *testing.T) {
	l := bringUp(t, withNeighbours(named("e2e-beside")))
	n := newNeighbours(t, l)
	n.await("Flux applies", func() error { return n.fluxed(0) })
	var before string
	n.await("the Rollout leads its Service", func() (err error) {
		before, err = n.colour()
		return err
	})
	s := n.callFromOutside(5, 10)
	lived := s.during(t, "a switch of the Rollout and an artifact", func() {
		n.rollOut(1)
		n.publish(1)
		n.await("the Rollout has switched", func() error {
			now, err := n.colour()
			if err == nil && now == before {
				err = fmt.Errorf("it is still at %s", now)
			}
			return err
		})
		n.await("Flux applies the next artifact", func() error { return n.fluxed(1) })
	})
	lived.requireNothingLost(t, traffic.Outside)
	n.requireAvailable()
	if sent := lived.stats(t, func(s traffic.Source) bool { return s.Via == traffic.ByAggregation }).Sent; sent == 0 {
		t.Error("the aggregated API was not asked")
	}
}

// requireAvailable fails the test unless the API server says that metrics-server serves.
func (n *neighbourhood) requireAvailable() {
	n.Helper()
	said := n.kubectl("get", "apiservice", "v1beta1.metrics.k8s.io", "-o", `jsonpath={.status.conditions[?(@.type=="Available")].status}`)
	if said != string(corev1.ConditionTrue) {
		n.Errorf("the APIService is available: %s", said)
	}
}
