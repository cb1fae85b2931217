package migrations

import (
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

// Deps make jobs of all kinds. Without a cluster they only validate a Migration.
type Deps struct {
	Cluster   *cluster.Cluster
	Inspector *apiserver.Inspector
	Image     pull.Image
	// Context gives access to another context of the kubeconfig; nil where there is none.
	Context        func(name string) (*rest.Config, error)
	InsecureTarget bool
	// Dir is the folder that relative paths of manifests are relative to.
	Dir      string
	Directed bool
}

// Basic are what every kind needs.
func (t Deps) Basic() migration.Deps {
	return migration.Deps{Cluster: t.Cluster, Image: t.Image, Directed: t.Directed}
}

// Services are for migrations of Services.
func (t Deps) Services() servicecidr.Deps {
	tools := servicecidr.Deps{Deps: t.Basic()}
	if t.Cluster != nil {
		tools.Probe, tools.Inspector = servicecidr.HealthPort{Cluster: t.Cluster}, t.Inspector
	}
	return tools
}

// Mirrors are for mirrors.
func (t Deps) Mirrors() mirror.Deps {
	return mirror.Deps{Deps: t.Basic(), Context: t.Context, InsecureTarget: t.InsecureTarget}
}

func newNetworkJob(t Deps, m *v1alpha1.Migration) (Job, error) {
	tools := cni.Deps{Deps: t.Basic(), Dir: t.Dir}
	if t.Cluster != nil {
		var err error
		if tools.Any, err = t.Cluster.Any(); err != nil {
			return nil, err
		}
	}
	return made(cni.NewJob(tools, m))
}
