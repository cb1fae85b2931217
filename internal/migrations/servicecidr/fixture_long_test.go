//go:build apiserver && long

package servicecidr

import (
	"github.com/replumb/replumb/internal/kube/cluster"
)

// through has the job see the cluster through another client for a while.
func (f *fixture) through(c *cluster.Cluster, do func()) {
	whole := f.job.Deps.Cluster
	f.job.Deps.Cluster, f.job.Client = c, c
	do()
	f.job.Deps.Cluster, f.job.Client = whole, whole
}
