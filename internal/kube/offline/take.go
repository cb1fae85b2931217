package offline

import (
	"context"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Taker takes a snapshot of a cluster.
type Taker struct {
	Cluster   *cluster.Cluster
	Inspector *apiserver.Inspector
	// Rights are those that checks ask the authorizer about. Their objects are read.
	Rights  []access.Right
	Replumb string
	Now     func() time.Time
}

// Take reads the cluster, page by page, and writes an archive. Nothing is written to the cluster.
func (t *Taker) Take(ctx context.Context, to io.Writer) (*Head, *Manifest, error) {
	version, err := t.Cluster.ServerVersion(ctx)
	if err != nil {
		return nil, nil, err
	}
	head := &Head{
		Kind: kindOfFile, Format: Format, Replumb: t.Replumb, Time: t.Now().UTC().Truncate(time.Second),
		Server: t.Cluster.Host(), Context: t.Cluster.ContextName, Kubernetes: version.GitVersion,
	}
	if of, err := t.Cluster.Identity(ctx); err == nil { // without the right to ask, it is not known
		head.UID = of.UID
	}
	w, err := newWriter(to, head)
	if err != nil {
		return nil, nil, err
	}
	said, err := t.ask(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := w.entry(answersName, said); err != nil {
		return nil, nil, err
	}
	for _, name := range t.untold(said) {
		w.unread(name)
	}
	counted := map[schema.GroupResource]bool{}
	for _, r := range t.resources(said) {
		first := !counted[r.GroupResource()]
		counted[r.GroupResource()] = true
		if err := t.collect(ctx, w, said, r, first); err != nil {
			return nil, nil, err
		}
	}
	m, err := w.close()
	return head, m, err
}
