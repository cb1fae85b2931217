package release

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
)

// Free gives up in etcd the addresses that released Services have left, and by the API what etcd
// does not have in the revision that was seen, or where it is not reached any more.
func Free(name string, store exchange.Store, all []Release) engine.Step {
	var changes []engine.Change
	for _, r := range all {
		for _, a := range slices.SortedFunc(maps.Keys(r.held()), netip.Addr.Compare) {
			changes = append(changes, engine.Change{Verb: "delete", Object: "etcd: IPAddress " + a.String() + " (held)"})
		}
	}
	changes = append(changes, engine.Change{Verb: "delete", Object: "IPAddress (held, instead, if etcd does not have it as it was)"})
	return &engine.Write{
		Name: "free/" + name, About: "Release the addresses that the Services of " + name + " have left",
		Write: func(ctx context.Context) error {
			left, err := freeInEtcd(ctx, store, all)
			if err != nil {
				return err
			}
			eg, ctx := errgroup.WithContext(ctx)
			eg.SetLimit(freedAtOnce)
			for _, r := range all {
				if some := r.among(left); len(some) > 0 {
					eg.Go(func() error { return r.free(ctx, some) })
				}
			}
			return eg.Wait()
		},
		Changes: engine.Shows(changes...),
	}
}

// freedAtOnce bounds the addresses that are given up by the API at the same time.
const freedAtOnce = 16

// freeInEtcd returns those that are left. Only the loss of the lock is an error.
func freeInEtcd(ctx context.Context, store exchange.Store, all []Release) (left map[string]string, err error) {
	versions := map[string]string{}
	for _, r := range all {
		for a, version := range r.held() {
			versions[a.String()] = version
		}
	}
	if len(versions) == 0 {
		return nil, nil
	}
	left, err = store.DeleteAddresses(ctx, versions)
	if !engine.Revoked(err) {
		err = nil
	}
	return left, err
}

// InEtcd reports whether etcd may give up what is reserved for a Service: etcd has moved it, and
// all of that was seen.
func (r Release) InEtcd() bool {
	return r.Entry.Exchanges() && !slices.ContainsFunc(r.Entry.Addresses(), func(a netip.Addr) bool {
		return a != r.At && r.Entry.Reserved[a].Version == ""
	})
}

// held are the addresses that were seen to be reserved for the Service, and in which revision.
func (r Release) held() map[netip.Addr]string {
	held := map[netip.Addr]string{}
	for a, reserved := range r.Entry.Reserved {
		held[a] = reserved.Version
	}
	return held
}

func (r Release) among(left map[string]string) (some []netip.Addr) {
	for a := range r.held() {
		if _, is := left[a.String()]; is {
			some = append(some, a)
		}
	}
	return some
}
