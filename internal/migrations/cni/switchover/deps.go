package switchover

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/migration"
)

// Deps are what steps work with.
type Deps struct {
	migration.Deps
	// Any is a client for objects of all kinds.
	Any client.Client
	// Dir is the folder that relative paths of manifests are relative to. Default: the one that
	// replumb runs in.
	Dir string
}
