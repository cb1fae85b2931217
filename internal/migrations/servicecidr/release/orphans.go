package release

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// RemoveOrphan removes the bridge of a Service that was deleted while it moved.
func RemoveOrphan(c client.Client, orphan *corev1.Service) engine.Step {
	key := client.ObjectKeyFromObject(orphan)
	return &engine.Write{
		Name: "tidy/bridge/" + key.String(), About: "Remove the bridge of a deleted Service, " + key.String(),
		Holds: func(ctx context.Context) error {
			err := c.Get(ctx, key, &corev1.Service{})
			if err == nil {
				return engine.NotYet("bridge %s is still there", key)
			}
			return client.IgnoreNotFound(err)
		},
		Write:   func(ctx context.Context) error { return bridge.Remove(ctx, c, key) },
		Changes: func() ([]engine.Change, error) { return BridgeDeletion(key, orphan.Spec.Selector), nil },
	}
}

// RemoveReservation removes a reservation that nothing needs any more.
func RemoveReservation(c client.Client, ip *networkingv1.IPAddress) engine.Step {
	return &engine.Write{
		Name: "tidy/hold/" + ip.Name, About: "Release the reserved address " + ip.Name,
		Holds: func(ctx context.Context) error {
			have := &networkingv1.IPAddress{}
			err := c.Get(ctx, client.ObjectKeyFromObject(ip), have)
			if err == nil && have.UID == ip.UID {
				return engine.NotYet("address %s is still reserved", ip.Name)
			}
			return client.IgnoreNotFound(err)
		},
		Write: func(ctx context.Context) error {
			return client.IgnoreNotFound(c.Delete(ctx, ip, client.Preconditions{UID: &ip.UID}))
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "IPAddress " + ip.Name}),
	}
}
