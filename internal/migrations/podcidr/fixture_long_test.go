//go:build apiserver && long

package podcidr

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/testing/migrationtest"
)

func (f *fixture) barePod(name string) {
	f.Helper()
	t := migrationtest.Template(name)
	f.Create(&corev1.Pod{ObjectMeta: migrationtest.Named(name), Spec: t.Spec}, 1)
}

// applying starts a run of its own.
func (f *fixture) applying() <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- f.apply() }()
	return ended
}
