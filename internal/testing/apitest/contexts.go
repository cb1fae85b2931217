package apitest

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Context is how a kubeconfig leads to a Server.
type Context struct {
	Server *Server
	// As is whom requests are made as. Default: the administrator.
	As string
}

// Contexts writes a kubeconfig with contexts by those names. Without a name it is current.
func Contexts(file, current string, all map[string]Context) error {
	whole := clientcmdapi.NewConfig()
	whole.CurrentContext = current
	for name, c := range all {
		one, err := clientcmd.LoadFromFile(c.Server.Kubeconfig)
		if err != nil {
			return fmt.Errorf("context %s: %w", name, err)
		}
		to := one.Contexts[one.CurrentContext].DeepCopy()
		user := one.AuthInfos[to.AuthInfo].DeepCopy()
		user.Impersonate = c.As
		whole.Clusters[name], whole.AuthInfos[name] = one.Clusters[to.Cluster], user
		to.Cluster, to.AuthInfo = name, name
		whole.Contexts[name] = to
	}
	return clientcmd.WriteToFile(*whole, file)
}
