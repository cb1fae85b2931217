package e2e

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/lab/lab"
)

// testStrangersAreRefused asks the API server and a kubelet without saying who asks.
func testStrangersAreRefused(t *testing.T, l *lab.Lab) {
	anonymous := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.RESTConfig().Host+"/api/v1/namespaces", nil)
	must(t, err)
	resp, err := anonymous.Do(req)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusForbidden {
		body, _ := io.ReadAll(resp.Body)
		t.Errorf("the API server answers a stranger with %s: %s", resp.Status, body)
	}

	// What is refused to strangers is open to the administrator, or the test shows nothing.
	if _, err := l.Client().CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the administrator is refused: %v", err)
	}
	for _, node := range l.NodeNames() {
		_, err := l.Exec(t.Context(), node, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/10255")
		if err == nil {
			t.Errorf("kubelet on %s has its read-only port open", node)
		}
	}
}

// testNodesAreConfined uses a node's own credentials: it may write its Node, and no other, nor read Secrets at large.
func testNodesAreConfined(t *testing.T, l *lab.Lab) {
	client := clientAs(t, l, "node1")
	label := []byte(`{"metadata":{"annotations":{"e2e":"was-here"}}}`)
	nodes := client.CoreV1().Nodes()
	if _, err := nodes.Patch(t.Context(), "node1", types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Errorf("node1 may not write its own Node: %v", err)
	}
	if _, err := nodes.Patch(t.Context(), "node2", types.MergePatchType, label, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("node1 writing node2's Node: %v, not that it is forbidden", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "e2e-secret"}}
	admin := l.Client().CoreV1().Secrets("default")
	if _, err := admin.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("default").Get(t.Context(), secret.Name, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("node1 reading a Secret no pod of its uses: %v, not that it is forbidden", err)
	}
}

// clientAs is a client with the credentials of a node's kubelet.
func clientAs(t *testing.T, l *lab.Lab, node string) kubernetes.Interface {
	t.Helper()
	m, err := l.Machine(node)
	must(t, err)
	path, err := m.Path(t.Context(), "/etc/kubernetes/kubelet.conf")
	must(t, err)
	data, err := os.ReadFile(path)
	must(t, err)
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	must(t, err)
	config.Host = l.RESTConfig().Host // the address it has there is not the host's
	return kubernetes.NewForConfigOrDie(config)
}

// testKubectlReachesPods reads a pod's log and runs something in it: API server, kubelet and containerd agree on who
// is who. That CoreDNS is ready shows that the ServiceAccount token mounted in its pod is good.
func testKubectlReachesPods(t *testing.T, l *lab.Lab) {
	pods, err := l.Client().CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	must(t, err)
	onNodes := map[string]bool{}
	for _, pod := range pods.Items {
		onNodes[pod.Spec.NodeName] = true
		log, err := l.Client().CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil || !strings.Contains(string(log), "CoreDNS-") {
			t.Errorf("log of %s on %s: %v: %q", pod.Name, pod.Spec.NodeName, err, log)
		}
		out, err := l.ExecPod(t.Context(), pod.Namespace, pod.Name, "/coredns", "-version")
		if err != nil || !strings.Contains(string(out), "CoreDNS-") {
			t.Errorf("running coredns -version in %s on %s: %v: %q", pod.Name, pod.Spec.NodeName, err, out)
		}
	}
	if len(onNodes) != len(l.NodeNames()) {
		t.Errorf("pods were reached on %d nodes of %d", len(onNodes), len(l.NodeNames()))
	}
}
