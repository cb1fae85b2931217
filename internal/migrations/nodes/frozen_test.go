//go:build apiserver && long

package nodes

import (
	"testing"

	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// frozen is a run that freezes deployments.
func frozen(t *testing.T) (*fixture, *migrationtest.FrozenRun) {
	t.Helper()
	f := setup(t, atFinish, migrationtest.Freezes)
	lift, err := migration.Lift(server.Cluster)
	f.Must(err)
	r := &migrationtest.FrozenRun{
		Others: f.Others(server), Requests: f.requests, Lift: lift, Moves: "create pods/eviction", MovesBack: "create pods/eviction",
		Apply: func(until string) error {
			m := sample()
			atFinish(m)
			migrationtest.Freezes(m)
			f.with(m)
			f.job.Until = until
			return f.apply()
		},
		Rollback: f.rollback, Finish: f.finish,
	}
	f.populate()
	return f, r
}

// TestFrozenThereAndFinished: others deploy until apply has secured the cluster, and again when
// finish is through.
func TestFrozenThereAndFinished(t *testing.T) {
	f, r := frozen(t)
	r.ThereAndFinished()
	f.allOn("c d")
}

// TestFrozenThereAndBack: the same on the way back.
func TestFrozenThereAndBack(t *testing.T) {
	f, r := frozen(t)
	r.ThereAndBack()
	f.allOn("a b")
}

// TestNotFrozen is the control: a migration that is not asked to leaves others alone.
func TestNotFrozen(t *testing.T) {
	f := setup(t)
	others := f.Others(server)
	f.populate()
	f.Must(f.apply())
	others.Free()
	others.AsBefore()
}
