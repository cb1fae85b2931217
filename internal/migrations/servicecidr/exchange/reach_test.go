package exchange

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// TestRefusedInEtcd: the run ends with the Services that cannot be moved, in their order, and a way
// on.
func TestRefusedInEtcd(t *testing.T) {
	err := refusedInEtcd(map[types.NamespacedName]error{
		{Namespace: "shop", Name: "b"}: errors.New("service shop/b in etcd: it is encrypted at rest"),
		{Namespace: "shop", Name: "a"}: errors.New("service shop/a in etcd: it has a lease"),
	})
	want := "2 Services cannot be moved in etcd: service shop/a in etcd: it has a lease; service shop/b in etcd: it is encrypted at rest"
	if err.Error() != want || engine.Retryable(err) || !strings.Contains(fault.Advice(err), "replumb.dev/strategy=pin") {
		t.Errorf("the error is %q, with the hint %q", err, fault.Advice(err))
	}
}
