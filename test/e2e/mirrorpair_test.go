package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnscutover"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// pair is a cluster with flannel and its mirror with Calico, in one fabric, each with a registry of its own.
type pair struct {
	t           *testing.T
	left, right *lab.Lab
	dir         string
	// total are the connections that a balancer has had when it was last asked.
	total map[string]int
}

func mirrored(t *testing.T, installer lab.Installer) *pair {
	t.Helper()
	down := func() {
		for _, name := range []string{rightName, leftName} {
			_, _ = lab.Down(context.Background(), name)
		}
	}
	down()
	t.Cleanup(down)
	first, second := lab.Default(), lab.Default()
	first.Name, first.CNI, first.Registry = leftName, lab.Flannel, "registry."+lab.Zone
	second.Name, second.CNI, second.Registry = rightName, lab.Calico, "registry-mirror."+lab.Zone
	second.Nodes = []lab.ProxyMode{lab.NFTables}
	if installer == lab.Kubeadm { // whose proxies have one mode, and whose control planes count where pods are spread over nodes
		first.Nodes, second.Nodes = []lab.ProxyMode{lab.IPTables, lab.IPTables}, append(second.Nodes, lab.NFTables)
	}
	second.Networks = []lab.Network{{Name: "r", CIDR: netip.MustParsePrefix("172.31.0.0/24")}}
	r := &pair{t: t, total: map[string]int{}}
	for _, of := range []struct {
		topology *lab.Topology
		into     **lab.Lab
	}{{&first, &r.left}, {&second, &r.right}} {
		of.topology.Edge, of.topology.Fabric, of.topology.With = true, "shared", []lab.Addon{lab.CertManager}
		of.topology.Installer = installer
		l, err := lab.Up(t.Context(), *of.topology, lab.Options{Progress: t.Logf})
		must(t, err)
		*of.into = l
	}
	t.Cleanup(func() { logIngress(t, r.left) })
	var err error
	if r.dir, err = os.MkdirTemp("", "replumb-mirror-"); err != nil { // a socket's path may have 107 characters
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(r.dir) })
	r.kubeconfig()
	return r
}

func (r *pair) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// kubeconfig has both clusters, as people outside reach them: the current context is the first.
func (r *pair) kubeconfig() {
	r.t.Helper()
	whole := clientcmd.GetConfigFromFileOrDie(os.DevNull)
	for context, l := range map[string]*lab.Lab{"left": r.left, mirrorName: r.right} {
		m, err := l.Machine(l.Edge().Bastion.Machine)
		r.must(err)
		body, err := m.ReadFile(r.t.Context(), l.Edge().Bastion.Kubeconfig)
		r.must(err)
		one, err := clientcmd.Load(body)
		r.must(err)
		c := one.Contexts[one.CurrentContext]
		whole.Clusters[context], whole.AuthInfos[context] = one.Clusters[c.Cluster], one.AuthInfos[c.AuthInfo]
		whole.Contexts[context] = c.DeepCopy()
		whole.Contexts[context].Cluster, whole.Contexts[context].AuthInfo = context, context
	}
	whole.CurrentContext = "left"
	r.must(clientcmd.WriteToFile(*whole, filepath.Join(r.dir, "kubeconfig")))
}

// balancer is the address of a lab's load balancer.
func balancer(l *lab.Lab) string { return l.Edge().Balancers[l.Topology.Networks[0].Name].String() }

// name writes records, as an owner of the key does.
func (r *pair) name(lines ...string) {
	r.t.Helper()
	edge := r.left.Edge()
	m, err := r.left.Machine(edge.Bastion.Machine)
	r.must(err)
	cmd, err := m.Command(r.t.Context(), "nsupdate", "-k", edge.UpdateKey)
	r.must(err)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("server %s\n%s\nsend\n", edge.NameServer.Addr(), strings.Join(lines, "\n")))
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
}

// populate opens the shop: with an image of the registry, a certificate, and what must not run twice.
func (r *pair) populate() {
	t, client := r.t, r.left.Client()
	t.Helper()
	for _, l := range []*lab.Lab{r.left, r.right} {
		r.must(l.Addons().Push(t.Context(), workload.EchoImage, "shop/echo:1"))
	}
	r.name(
		"update add "+shopHost+" 20 A "+balancer(r.left), "update add "+blogHost+" 20 A "+balancer(r.left),
		"update add "+aliasHost+" 20 A "+balancer(r.right), "update add "+ownedHost+" 20 A 192.0.2.1",
		`update add a-`+ownedHost+` 20 TXT "heritage=external-dns,external-dns/owner=theirs,external-dns/resource=ingress/x/y"`,
	)
	r.must(workload.Ensure(t.Context(), client, workload.Namespace(shopNamespace)))
	for name, l := range map[string]*lab.Lab{"pull": r.left, "registry-mirror": r.right} {
		config, err := l.Registry().DockerConfig()
		r.must(err)
		_, err = client.CoreV1().Secrets(shopNamespace).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: config},
		}, metav1.CreateOptions{})
		r.must(err)
	}
	front := pulled(r.left, "front", "pull")
	front.Spec.Replicas = ptr.To[int32](2)
	mailer := pulled(r.left, "mailer", "pull")
	mailer.Annotations = map[string]string{v1alpha1.AnnotationRunOnce: "true"}
	service := workload.Echo{Namespace: shopNamespace, Name: "front", PartOf: "shop"}.Service()
	settings := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: shopNamespace, Name: "settings"},
		Data:       map[string]string{"a": "b"},
	}
	r.must(workload.Ensure(t.Context(), client, front, mailer, service))
	_, err := client.CoreV1().ConfigMaps(shopNamespace).Create(t.Context(), settings, metav1.CreateOptions{})
	r.must(err)
	_, err = client.BatchV1().CronJobs(shopNamespace).Create(t.Context(), r.nightly(), metav1.CreateOptions{})
	r.must(err)
	for _, i := range []*networkingv1.Ingress{storefront("shop", shopHost), storefront("blog", blogHost)} {
		_, err := client.NetworkingV1().Ingresses(shopNamespace).Create(t.Context(), i, metav1.CreateOptions{})
		r.must(err)
	}
	r.must(workload.WaitReady(t.Context(), client, settled, front, mailer))
	eventually(t, settled, func() error {
		_, err := curl(t, r.left, "https://"+shopHost+"/")
		return err
	})
}

// nightly is a CronJob of every minute, so that some are due while what must not run twice changes sides.
func (r *pair) nightly() *batchv1.CronJob {
	from := pulled(r.left, "nightly", "pull").Spec.Template.Spec
	pod := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](1), ImagePullSecrets: from.ImagePullSecrets,
		Containers: []corev1.Container{{Name: "c", Image: from.Containers[0].Image, ImagePullPolicy: corev1.PullAlways}},
	}
	const runs = 5 // seconds, then the Job is ended
	return &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}, Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *", SuccessfulJobsHistoryLimit: ptr.To[int32](100), FailedJobsHistoryLimit: ptr.To[int32](100),
		JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
			ActiveDeadlineSeconds: ptr.To[int64](runs), BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{Spec: pod},
		}},
	}}
}

// storefront leads a host to the front, over TLS too if it is the shop.
func storefront(name, host string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressSpec{
		IngressClassName: ptr.To(workload.IngressClass),
		Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix), Backend: networkingv1.IngressBackend{
					Service: &networkingv1.IngressServiceBackend{
						Name: "front",
						Port: networkingv1.ServiceBackendPort{Number: workload.HTTPPort},
					},
				},
			}}},
		}}},
	}}
	if name == "shop" {
		i.Annotations = map[string]string{"cert-manager.io/cluster-issuer": lab.ClusterIssuer}
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: "shop-tls"}}
	}
	return i
}

// callers call both hosts from outside, all the time.
func (r *pair) callers() *shop {
	r.t.Helper()
	watch, err := traffic.Start(r.t.Context(), r.left.Client(), nil)
	r.must(err)
	r.t.Cleanup(watch.Stop)
	edge := r.left.Edge()
	m, err := r.left.Machine(edge.Bastion.Machine)
	r.must(err)
	outpost := traffic.Outpost{
		Name: edge.Bastion.Machine, Command: m.Command, Client: edge.Bastion.Client, Token: edge.Bastion.Token, CA: edge.Bastion.CA,
	}
	r.must(watch.AddOutside(r.t.Context(), outpost, traffic.CallHosts(traffic.Rates{Request: 32}, "/", shopHost, blogHost)))
	return &shop{watch: watch, prompt: traffic.OfPods()}
}

// example is a file that a runbook shows.
func (r *pair) example(path string) *v1alpha1.Migration {
	r.t.Helper()
	body, err := os.ReadFile("../../examples/" + path)
	r.must(err)
	m, err := spec.Parse(body)
	r.must(err)
	return m
}

// write fills a Migration into a file.
func (r *pair) write(name string, m *v1alpha1.Migration) string {
	r.t.Helper()
	body, err := yaml.Marshal(m)
	r.must(err)
	path := filepath.Join(r.dir, name)
	r.must(os.WriteFile(path, body, 0o600))
	return path
}

// file is the example, with what is different in every lab.
func (r *pair) file() string {
	r.t.Helper()
	return r.write("mirror.yaml", r.migration())
}

func (r *pair) migration() *v1alpha1.Migration {
	m := r.example("mirror/mirror.yaml")
	d := &m.Spec.Mirror.Redirect
	d.From, d.To = []string{balancer(r.left)}, []string{balancer(r.right)}
	d.Names = append(d.Names, v1alpha1.RedirectName{Name: blogHost})
	d.Provider.RFC2136.Server, d.Provider.RFC2136.TSIGKeyFile = r.left.Edge().NameServer.String(), r.left.Edge().UpdateKey
	d.Quiet = r.quiet()
	return m
}

// quiet answers how many connections a balancer has had since it was asked before.
func (r *pair) quiet() *v1alpha1.Action {
	socket := filepath.Join(r.dir, "quiet.sock")
	if _, err := os.Stat(socket); err != nil {
		listener, err := new(net.ListenConfig).Listen(r.t.Context(), "unix", socket)
		r.must(err)
		server := &http.Server{Handler: http.HandlerFunc(r.serveQuiet), ReadHeaderTimeout: settled}
		go func() { _ = server.Serve(listener) }() // it ends when the server is closed
		r.t.Cleanup(func() { _ = server.Close() })
	}
	return &v1alpha1.Action{
		Exec: &v1alpha1.ExecAction{Command: []string{
			"curl", "--silent", "--show-error", "--fail-with-body", "--unix-socket", socket, "--data", "@-", "http://balancer/",
		}},
		Timeout: &metav1.Duration{Duration: time.Minute},
	}
}

func (r *pair) serveQuiet(w http.ResponseWriter, request *http.Request) {
	var asked dnscutover.QuietRequest
	if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l := r.left
	if asked.Side == v1alpha1.ServingTarget {
		l = r.right
	}
	total := 0
	for _, program := range []string{lab.IngressBalancer, lab.IngressTLSBalancer} {
		statuses, err := l.Balancers().Balanced(request.Context(), l.Topology.Networks[0].Name, program)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		for _, s := range statuses {
			total += s.Total
		}
	}
	since := total - r.total[l.Topology.Name]
	r.total[l.Topology.Name] = total
	_ = json.NewEncoder(w).Encode(map[string]int{"newConnections": since})
}

// command of replumb, where people outside are.
func (r *pair) command(args ...string) *exec.Cmd {
	r.t.Helper()
	m, err := r.left.Machine(r.left.Edge().Bastion.Machine)
	r.must(err)
	cmd, err := m.Command(r.t.Context(), append([]string{
		filepath.Join(binaries(r.t), "replumb"), "--kubeconfig", filepath.Join(r.dir, "kubeconfig"),
	}, args...)...)
	r.must(err)
	return cmd
}

func (r *pair) replumb(args ...string) {
	r.t.Helper()
	start := time.Now()
	out, err := r.command(args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("replumb %s: %v\n%s", strings.Join(args, " "), err, tailOf(out))
	}
	r.t.Logf("replumb %s took %s", strings.Join(args, " "), time.Since(start).Round(time.Second))
	for line := range strings.Lines(tailOf(out)) {
		r.t.Log(strings.TrimRight(line, "\n"))
	}
}

// killed runs apply until a step whose name begins so has begun, and kills it.
func (r *pair) killed(file, step string) {
	r.t.Helper()
	runUntil(r.t, r.command("apply", "-f", file, "-o", "json"), func(e engine.Event) bool {
		return e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, step)
	})
}
