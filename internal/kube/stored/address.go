package stored

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/etcd"
)

// Making is how IPAddresses are made.
type Making struct {
	// Manager is the field manager that they name.
	Manager string
	// Like is the IPAddress whose encoding they get.
	Like string
}

func (s *Services) changeAddresses(e *entry) error {
	for _, name := range slices.Sorted(maps.Keys(e.Addresses)) {
		change := s.changeAddress
		if e.kept[s.addressKey(name)] == nil && e.Make != nil {
			change = s.makeAddress
		}
		if err := change(e, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Services) changeAddress(e *entry, name string) error {
	kv := e.kept[s.addressKey(name)]
	ip, around, err := readAddress(e, kv, name)
	if err != nil {
		return err
	}
	if e.Addresses[name] == nil {
		e.keep(kv)
		return nil
	}
	if err := e.Addresses[name](ip); err != nil {
		return err
	}
	value, err := around.encode(ip)
	if err != nil {
		return fmt.Errorf("ipaddress %s in etcd: %w", name, err)
	}
	e.replace(kv, value)
	return nil
}

func readAddress(e *entry, kv *mvccpb.KeyValue, name string) (*networkingv1.IPAddress, *envelope, error) {
	if kv == nil {
		return nil, nil, engine.NotYet("service %s: there is no IPAddress %s in etcd", keyOf(e.Service), name)
	}
	ip := &networkingv1.IPAddress{}
	around, err := decode(kv.Value, addressKind(), ip)
	if err == nil && kv.Lease != 0 {
		err = unknown("it has a lease")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("ipaddress %s in etcd: %w", name, err)
	}
	return ip, around, nil
}

// makeAddress makes an IPAddress as API servers do (BeforeCreate in k8s.io/apiserver
// pkg/registry/rest/create.go), if there is still none.
func (s *Services) makeAddress(e *entry, name string) error {
	_, around, err := readAddress(e, e.kept[s.addressKey(e.Make.Like)], e.Make.Like)
	if err != nil {
		return err
	}
	ip := &networkingv1.IPAddress{}
	ip.Name, ip.UID = name, uuid.NewUUID()
	if err := e.Addresses[name](ip); err != nil {
		return err
	}
	ip.TypeMeta = metav1.TypeMeta{}
	if around.json {
		ip.APIVersion, ip.Kind = around.unknown.APIVersion, around.unknown.Kind
	}
	if ip.ManagedFields, err = managed(ip, e.Make.Manager, around.unknown.APIVersion); err != nil {
		return fmt.Errorf("ipaddress %s: %w", name, err)
	}
	value, err := around.encode(ip)
	if err != nil {
		return fmt.Errorf("ipaddress %s: %w", name, err)
	}
	key := s.addressKey(name)
	e.unchanged = append(e.unchanged, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
	e.write(0, key, value)
	return nil
}

// managed is who has set the fields of a new IPAddress.
func managed(ip *networkingv1.IPAddress, manager, version string) ([]metav1.ManagedFieldsEntry, error) {
	type fields map[string]any
	set := func(names ...string) fields {
		all := fields{".": fields{}}
		for _, name := range names {
			all["f:"+name] = fields{}
		}
		return all
	}
	meta := fields{"f:labels": set(slices.Collect(maps.Keys(ip.Labels))...)}
	if len(ip.Annotations) > 0 {
		meta["f:annotations"] = set(slices.Collect(maps.Keys(ip.Annotations))...)
	}
	raw, err := json.Marshal(fields{
		"f:metadata": meta,
		"f:spec":     fields{"f:parentRef": set("name", "namespace", "resource")},
	})
	at := ip.CreationTimestamp
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version, Time: &at,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(raw)),
	}}, err
}

// deletesAtOnce bounds the requests of one DeleteAddresses.
const deletesAtOnce = 16

// DeleteAddresses deletes IPAddresses in the resourceVersions in which API servers have answered
// with them, by name, and returns those that it has not deleted. Each has a revision of its own:
// who lists or watches takes the first change of a revision for all of it, and a cache that begins
// between two would keep the second address for good.
func (s *Services) DeleteAddresses(ctx context.Context, lock *HeldLease, versions map[string]string) (left map[string]string, err error) {
	left = versions
	for range tries {
		if left, err = s.deleteAddresses(ctx, lock, left); err != nil || len(left) == 0 {
			break
		}
	}
	return left, err
}

func (s *Services) deleteAddresses(ctx context.Context, lock *HeldLease, versions map[string]string) (left map[string]string, err error) {
	var held []clientv3.Cmp
	if lock != nil {
		kept, err := s.read(ctx, []string{s.leaseKey(lock.Lease)})
		if err == nil {
			held, err = s.checkLock(kept, lock)
		}
		if err != nil {
			return versions, err
		}
	}
	var mu sync.Mutex
	left = maps.Clone(versions)
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(deletesAtOnce)
	for name, version := range versions {
		eg.Go(func() error {
			deleted, err := s.deleteAddress(ctx, held, name, version)
			if deleted {
				mu.Lock()
				defer mu.Unlock()
				delete(left, name)
			}
			return err
		})
	}
	return left, eg.Wait()
}

func (s *Services) deleteAddress(ctx context.Context, held []clientv3.Cmp, name, version string) (deleted bool, err error) {
	revision, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return false, nil //nolint:nilerr // it is none of etcd's
	}
	key := s.addressKey(name)
	unchanged := append(slices.Clone(held), clientv3.Compare(clientv3.ModRevision(key), "=", revision))
	answer, err := s.Etcd.KV().Txn(ctx).If(unchanged...).Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return false, etcd.Failed(err, "ipaddress %s: deleting it in etcd", name)
	}
	return answer.Succeeded, nil
}
