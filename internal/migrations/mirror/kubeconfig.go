package mirror

import (
	"fmt"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/replumb/replumb/internal/engine/fault"
)

// KubeconfigError says that a kubeconfig from a Secret asks for more than to connect: its writer
// could have this machine run programs or send files. No value of it is quoted.
type KubeconfigError struct {
	Secret string
	// Field of the kubeconfig, such as users[admin].user.exec; empty if it is none.
	Field   string
	Problem string
}

func (e *KubeconfigError) Error() string {
	at := ""
	if e.Field != "" {
		at = ": " + e.Field
	}
	return fmt.Sprintf("the kubeconfig of the target, in secret %s%s: %s", e.Secret, at, e.Problem)
}

func (*KubeconfigError) Advice() string {
	return "write one with server (https), certificate-authority-data, and token or client-certificate-data and client-key-data; or name a context of your own " +
		"kubeconfig in spec.mirror.target.context; --insecure-target-kubeconfig takes it as it is"
}

func (*KubeconfigError) ExitCode() int { return fault.ExitBlocked }

// reduced takes server, CA and credentials of the current context. All else is an error.
func reduced(body []byte) (*rest.Config, *KubeconfigError) {
	config, err := clientcmd.Load(body)
	if err != nil { // what is wrong with it may quote it
		return nil, &KubeconfigError{Problem: "it cannot be read"}
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return nil, &KubeconfigError{Field: "current-context", Problem: "there is no such context"}
	}
	server, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	if server == nil {
		return nil, &KubeconfigError{Field: "contexts[].context.cluster", Problem: "there is no such cluster"}
	}
	if user == nil {
		return nil, &KubeconfigError{Field: "contexts[].context.user", Problem: "there is no such user"}
	}
	if bad := excess(server, user); bad != nil {
		return nil, bad
	}
	u, err := url.Parse(server.Server)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return nil, &KubeconfigError{Field: "clusters[].cluster.server", Problem: "it is not a URL of https"}
	}
	return &rest.Config{
		Host: server.Server, BearerToken: user.Token,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: server.CertificateAuthorityData, ServerName: server.TLSServerName,
			CertData: user.ClientCertificateData, KeyData: user.ClientKeyData,
		},
	}, nil
}

// excess is the first thing in a cluster or user that does more than connect.
func excess(server *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) *KubeconfigError {
	const file = "names a file of this machine"
	for _, f := range []struct {
		field, problem string
		set            bool
	}{
		{"users[].user.exec", "runs a program on this machine", user.Exec != nil},
		{"users[].user.auth-provider", "runs a plugin on this machine", user.AuthProvider != nil},
		{"users[].user.tokenFile", file, user.TokenFile != ""},
		{"users[].user.client-certificate", file, user.ClientCertificate != ""},
		{"users[].user.client-key", file, user.ClientKey != ""},
		{"clusters[].cluster.certificate-authority", file, server.CertificateAuthority != ""},
		{"clusters[].cluster.insecure-skip-tls-verify", "lets anyone in between read all that is copied", server.InsecureSkipTLSVerify},
		{"clusters[].cluster.proxy-url", "leads all that is copied through another", server.ProxyURL != ""},
		{"users[].user.username", "is no longer taken by Kubernetes", user.Username != "" || user.Password != ""},
		{"users[].user.as", "acts as another user", user.Impersonate != "" || user.ImpersonateUID != "" ||
			len(user.ImpersonateGroups) > 0 || len(user.ImpersonateUserExtra) > 0},
	} {
		if f.set {
			return &KubeconfigError{Field: f.field, Problem: "it " + strings.TrimPrefix(f.problem, "it ")}
		}
	}
	return nil
}
