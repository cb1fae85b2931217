package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/lab/haproxy"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
	"github.com/replumb/replumb/lab/workload"
)

// TestRegistryAndCertificates sees that nodes pull images from a lab's registry for pods with credentials, and for no others;
// that cert-manager issues what Ingresses ask for; that the ingress serves it, by name and from outside; and that a name that is
// added is served with a certificate that has it.
func TestRegistryAndCertificates(t *testing.T) {
	const name = "registry"
	before := labtest.HostState(t)
	topology := lab.Default()
	topology.Name, topology.Nodes, topology.Edge = name, []lab.ProxyMode{lab.NFTables}, true
	topology.Registry, topology.With = "registry.lab.example", []lab.Addon{lab.CertManager}
	t.Cleanup(func() { _, _ = lab.Down(context.Background(), name) })
	l, err := lab.Up(t.Context(), topology, lab.Options{Progress: t.Logf})
	must(t, err)
	t.Cleanup(func() { logIngress(t, l) }) // before the lab goes

	requireRefusals(t, l)
	pullFromRegistry(t, l)
	serveOverTLS(t, l)
	t.Run("on a node that joins", func(t *testing.T) { requireJoinedNodePulls(t, l) })
	if t.Failed() {
		return
	}
	if _, err := lab.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	labtest.RequireNothingLeft(t, name)
	labtest.RequireUnchanged(t, before)
}

// curl is what a request from outside prints, or what was wrong with it.
func curl(t *testing.T, l *lab.Lab, argv ...string) (string, error) {
	t.Helper()
	edge := l.Edge()
	fixed := []string{"curl", "--silent", "--show-error", "--max-time", "5", "--cacert", edge.Bastion.CA}
	out, err := l.Exec(t.Context(), edge.Bastion.Machine, append(fixed, argv...)...)
	return strings.TrimSpace(string(out)), err
}

// requireRefusals fails the test unless the registry lets in who has its credentials, and no other.
func requireRefusals(t *testing.T, l *lab.Lab) {
	t.Helper()
	r := l.Registry()
	for user, want := range map[string]string{
		r.Username + ":" + r.Password: "200", r.Username + ":another-registry's": "401", "": "401",
	} {
		argv := []string{"--output", "/dev/null", "--write-out", "%{http_code}", "https://" + r.Host + "/v2/"}
		if user != "" {
			argv = append(argv, "--user", user)
		}
		if got, err := curl(t, l, argv...); got != want {
			t.Errorf("the registry answers %s, want %s: %v", got, want, err)
		}
	}
}

// pulled is an echo server whose image comes from the lab's registry, with the credentials in a Secret, if that has a name.
func pulled(l *lab.Lab, name, secret string) *appsv1.Deployment {
	d := workload.Echo{Namespace: shopNamespace, Name: name, PartOf: "shop", Replicas: 1}.Deployment()
	pod := &d.Spec.Template.Spec
	// Always: what one pod has pulled is on the node.
	pod.Containers[0].Image, pod.Containers[0].ImagePullPolicy = l.Registry().Host+"/shop/echo:1", corev1.PullAlways
	if secret != "" {
		pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
	}
	return d
}

// pullFromRegistry starts a Deployment that may pull its image. The control are two that may not.
func pullFromRegistry(t *testing.T, l *lab.Lab) {
	t.Helper()
	ctx, client := t.Context(), l.Client()
	must(t, l.Addons().Push(ctx, workload.EchoImage, "shop/echo:1"))
	must(t, workload.Ensure(ctx, client, workload.Namespace(shopNamespace)))
	wrong := *l.Registry()
	wrong.Password = "another registry's"
	for secret, r := range map[string]*lab.Registry{"pull": l.Registry(), "wrong": &wrong} {
		config, err := r.DockerConfig()
		must(t, err)
		_, err = client.CoreV1().Secrets(shopNamespace).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: secret}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: config},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	front := pulled(l, "front", "pull")
	service := workload.Echo{Namespace: shopNamespace, Name: "front", PartOf: "shop"}.Service()
	must(t, workload.Ensure(ctx, client, front, service, pulled(l, "stranger", ""), pulled(l, "impostor", "wrong")))
	must(t, workload.WaitReady(ctx, client, settled, front))
	requireNotPulled(t, l, "stranger", "may require authorization")
	requireNotPulled(t, l, "impostor", "401 Unauthorized")
}

// requireNotPulled waits for the word that a Deployment's image was refused, and fails the test if a pod of it runs.
func requireNotPulled(t *testing.T, l *lab.Lab, name, says string) {
	t.Helper()
	eventually(t, settled, func() error {
		events, err := l.Client().CoreV1().Events(shopNamespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Failed"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.HasPrefix(e.InvolvedObject.Name, name+"-") && strings.Contains(e.Message, says) {
				t.Logf("control: %s", e.Message)
				return nil
			}
		}
		return fmt.Errorf("no event of %s says %q", name, says)
	})
	d, err := l.Client().AppsV1().Deployments(shopNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || d.Status.ReadyReplicas != 0 {
		t.Errorf("%s is ready without credentials: %v", name, err)
	}
}

// serveOverTLS gives the pulled Deployment a name outside, with a certificate, and then another.
func serveOverTLS(t *testing.T, l *lab.Lab) {
	t.Helper()
	const first, second = "shop.lab.example", "shop-mirror.lab.example"
	nameBalancer(t, l, first, second)
	ingresses := l.Client().NetworkingV1().Ingresses(shopNamespace)
	made, err := ingresses.Create(t.Context(), ingressTo("front", first), metav1.CreateOptions{})
	must(t, err)
	requireServedOverTLS(t, l, first)
	requireCertificateReady(t, l)
	made, err = ingresses.Get(t.Context(), made.Name, metav1.GetOptions{})
	must(t, err)
	if got, want := made.Status.LoadBalancer.Ingress, l.Edge().Balancers["a"].String(); len(got) != 1 || got[0].IP != want {
		t.Errorf("the Ingress is to be found at %+v, want %s", got, want)
	}
	if got, err := curl(t, l, "https://"+second+"/"); err == nil { // control
		t.Errorf("a name that was not asked for answers %q", got)
	}

	made.Spec = ingressTo("front", first, second).Spec
	if _, err := ingresses.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	requireServedOverTLS(t, l, second)
	requireServedOverTLS(t, l, first)
	requireCertificateReady(t, l)
	for url, want := range map[string]string{
		"http://" + first + "/": `"name":"front"`,
		"http://" + l.Edge().Ingress + "/" + shopNamespace + "/front/": `"name":"front"`,
		"http://" + l.Edge().Ingress + "/":                             `"name":"ingress"`,
	} {
		if got, err := curl(t, l, url); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s answers %q: %v", url, got, err)
		}
	}
}

// nameBalancer gives names the address of the first network's balancer.
func nameBalancer(t *testing.T, l *lab.Lab, names ...string) {
	t.Helper()
	edge := l.Edge()
	m, err := l.Machine(edge.Bastion.Machine)
	must(t, err)
	cmd, err := m.Command(t.Context(), "nsupdate", "-k", edge.UpdateKey)
	must(t, err)
	script := fmt.Sprintf("server %s\n", edge.NameServer.Addr())
	for _, name := range names {
		script += fmt.Sprintf("update add %s 30 A %s\n", name, edge.Balancers["a"])
	}
	cmd.Stdin = strings.NewReader(script + "send\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nsupdate: %v: %s", err, out)
	}
}

// ingressTo leads hosts to a Service, over TLS too, with a certificate that cert-manager is to make.
func ingressTo(service string, hosts ...string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: shopNamespace, Name: service, Annotations: map[string]string{"cert-manager.io/cluster-issuer": lab.ClusterIssuer},
		},
		Spec: networkingv1.IngressSpec{
			IngressClassName: ptr.To(workload.IngressClass),
			TLS:              []networkingv1.IngressTLS{{Hosts: hosts, SecretName: service + "-tls"}},
		},
	}
	for _, host := range hosts {
		i.Spec.Rules = append(i.Spec.Rules, networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix),
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: service, Port: networkingv1.ServiceBackendPort{Name: "http"},
				}},
			}}},
		}})
	}
	return i
}

// requireServedOverTLS waits until a name answers over TLS from outside, with a certificate of the lab's authority.
func requireServedOverTLS(t *testing.T, l *lab.Lab, name string) {
	t.Helper()
	eventually(t, settled, func() error {
		got, err := curl(t, l, "https://"+name+"/")
		if err == nil && !strings.Contains(got, `"name":"front"`) {
			err = errors.New(got)
		}
		return err
	})
}

// requireCertificateReady fails the test unless cert-manager says that it has issued what was asked for.
func requireCertificateReady(t *testing.T, l *lab.Lab) {
	t.Helper()
	argv := []string{
		"--kubeconfig", l.Edge().Bastion.Kubeconfig, "-n", shopNamespace, "wait", "--for=condition=Ready", "--timeout=" + settled.String(),
		"certificate/front-tls",
	}
	onBastion(t, l, append([]string{l.Kubectl()}, argv...)...)
}

// requireJoinedNodePulls has a pod run on a node that was not there from the first.
func requireJoinedNodePulls(t *testing.T, l *lab.Lab) {
	joined, err := l.Workers().Add(t.Context(), lab.Joining{Proxy: lab.IPTables})
	must(t, err)
	late := pulled(l, "late", "pull")
	late.Spec.Template.Spec.NodeName, late.Spec.Template.Spec.TopologySpreadConstraints = joined.Name, nil
	must(t, workload.Ensure(t.Context(), l.Client(), late))
	if err := workload.WaitReady(t.Context(), l.Client(), settled, late); err != nil {
		t.Error(err)
	}
	for _, program := range []string{lab.IngressBalancer, lab.IngressTLSBalancer} {
		statuses, err := l.Balancers().Balanced(t.Context(), "a", program)
		must(t, err)
		if !slices.ContainsFunc(statuses, isServer(joined.Name)) {
			t.Errorf("%s does not know %s: %+v", program, joined.Name, statuses)
		}
	}
}

func isServer(name string) func(haproxy.Status) bool {
	return func(s haproxy.Status) bool { return s.Server == name }
}
