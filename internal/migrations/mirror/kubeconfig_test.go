package mirror

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine/fault"
)

// kubeconfig is one as Cluster API writes it, with more in its cluster and in its user.
func kubeconfig(cluster, user string) string {
	return `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: a, user: b}}]
clusters: [{name: a, cluster: {server: "https://192.0.2.1:6443", certificate-authority-data: Y2E=` + cluster + `}}]
users: [{name: b, user: {token: t0ken` + user + `}}]
`
}

// TestKubeconfigIsReduced has a Secret's writer try each way to have the operator's machine do more
// than to connect.
func TestKubeconfigIsReduced(t *testing.T) {
	config, bad := reduced([]byte(kubeconfig("", "")))
	if bad != nil || config.Host != "https://192.0.2.1:6443" || config.BearerToken != "t0ken" || string(config.CAData) != "ca" {
		t.Fatalf("got %+v, %v", config, bad)
	}
	for _, tt := range []struct{ cluster, user, field string }{
		{"", ", exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [/tmp/x], interactiveMode: Never}", "users[].user.exec"},
		{"", ", auth-provider: {name: oidc}", "users[].user.auth-provider"},
		{"", ", tokenFile: /etc/passwd", "users[].user.tokenFile"},
		{"", ", client-certificate: /etc/passwd", "users[].user.client-certificate"},
		{"", ", client-key: /etc/passwd", "users[].user.client-key"},
		{"", ", username: a, password: b", "users[].user.username"},
		{"", ", as: admin", "users[].user.as"},
		{"", ", as-groups: [system:masters]", "users[].user.as"},
		{", certificate-authority: /etc/passwd", "", "clusters[].cluster.certificate-authority"},
		{", insecure-skip-tls-verify: true", "", "clusters[].cluster.insecure-skip-tls-verify"},
		{", proxy-url: 'http://192.0.2.9'", "", "clusters[].cluster.proxy-url"},
		{", server: 'http://192.0.2.1'", "", "clusters[].cluster.server"},
		{", server: 'https://user:pass@192.0.2.1'", "", "clusters[].cluster.server"},
		{", server: ''", "", "clusters[].cluster.server"},
		{", server: 'file:///etc/passwd'", "", "clusters[].cluster.server"},
	} {
		text := kubeconfig(tt.cluster, tt.user)
		if strings.Contains(tt.cluster, "server:") { // a key that is there twice is no YAML
			text = strings.Replace(text, `server: "https://192.0.2.1:6443", `, "", 1)
		}
		config, bad := reduced([]byte(text))
		if config != nil || bad == nil || bad.Field != tt.field {
			t.Errorf("%s%s: got %+v, %v", tt.cluster, tt.user, config, bad)
			continue
		}
		if code, _ := fault.ExitCode(
			bad,
		); code != fault.ExitBlocked ||
			!strings.Contains(fault.Advice(bad), "--insecure-target-kubeconfig") ||
			strings.Contains(bad.Error(), "passwd") {
			t.Errorf("%v, hint %s", bad, fault.Advice(bad))
		}
	}
	for _, text := range []string{
		"", "{", "apiVersion: v1\nkind: Config\n", strings.Replace(kubeconfig("", ""), "current-context: c", "", 1),
		strings.Replace(kubeconfig("", ""), "user: b", "user: x", 1), strings.Replace(kubeconfig("", ""), "cluster: a,", "cluster: x,", 1),
	} {
		if config, bad := reduced([]byte(text)); config != nil || bad == nil {
			t.Errorf("%q: got %+v", text, config)
		}
	}
}

// FuzzKubeconfig holds that whatever is in a Secret gives access by https with data of its own
// alone, or none.
func FuzzKubeconfig(f *testing.F) {
	marker := filepath.Join(f.TempDir(), "marker")
	f.Add([]byte(kubeconfig("", "")))
	f.Add([]byte(kubeconfig(", insecure-skip-tls-verify: true", ", tokenFile: "+marker)))
	f.Add([]byte(kubeconfig("", ", exec: {command: touch, args: ["+marker+"]}")))
	f.Add([]byte("clusters: [null]\nusers: [null]\ncontexts: [null]\ncurrent-context: ''\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		config, bad := reduced(body)
		if (config == nil) == (bad == nil) {
			t.Fatalf("%+v, %v", config, bad)
		}
		if config == nil {
			return
		}
		tls := config.TLSClientConfig
		if !strings.HasPrefix(strings.ToLower(config.Host), "https://") || config.ExecProvider != nil || config.AuthProvider != nil ||
			config.Proxy != nil ||
			config.BearerTokenFile+tls.CAFile+tls.CertFile+tls.KeyFile+config.Username+config.Impersonate.UserName != "" ||
			tls.Insecure {
			t.Fatalf("%+v", config)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Fatal("a program ran")
		}
	})
}
