package stored

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/etcd"
)

const (
	// together are as many exchanges as share a transaction: etcd takes 128 comparisons
	// (--max-txn-ops), and each has up to three objects.
	together = 32
	// bytesTogether bounds what a transaction writes: etcd takes 1.5 MiB (--max-request-bytes).
	bytesTogether = 512 << 10
	// tries are those of a transaction. After a refusal all is read again, and what was in its way
	// is left out.
	tries = 3
)

// entry is an exchange on its way into a transaction.
type entry struct {
	Exchange

	// refused is why it was not made.
	refused error

	// kept is what there is of its objects, and of the Lease.
	kept      map[string]*mvccpb.KeyValue
	unchanged []clientv3.Cmp
	puts      []clientv3.Op
	size      int
	// becomes is the Service once it is written; nil, if it is left alone.
	becomes *corev1.Service
}

func (e *entry) keep(kv *mvccpb.KeyValue) { e.unchanged = append(e.unchanged, since(kv)) }

// replace writes last what is written as it was: a cache that begins after the first change of a
// revision does not see the others of it.
func (e *entry) replace(kv *mvccpb.KeyValue, value []byte) {
	e.keep(kv)
	at := 0
	if bytes.Equal(kv.Value, value) {
		at = len(e.puts)
	}
	e.write(at, string(kv.Key), value)
}

func (e *entry) write(at int, key string, value []byte) {
	e.puts, e.size = slices.Insert(e.puts, at, clientv3.OpPut(key, string(value))), e.size+len(value)
}

func since(kv *mvccpb.KeyValue) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)
}

func entriesOf(all []Exchange) []*entry {
	entries := make([]*entry, len(all))
	for i, x := range all {
		entries[i] = &entry{Exchange: x}
	}
	return entries
}

func refusals(all []*entry) []error {
	refused := make([]error, len(all))
	for i, e := range all {
		refused[i] = e.refused
	}
	return refused
}

func refuse(all []*entry, err error) {
	for _, e := range all {
		e.refused = err
	}
}

// Exchange makes each change as a whole, or says why not, in their order: if nothing of it has
// changed since it was read and the lock, if there is one, is held. One that is refused holds up no
// other. Watchers see one change of each object. The Service of a change then is what API servers
// answer with from now on.
func (s *Services) Exchange(ctx context.Context, lock *HeldLease, all ...Exchange) []error {
	entries := entriesOf(all)
	for some := range slices.Chunk(entries, together) {
		for range tries {
			if some = s.exchange(ctx, lock, some); len(some) == 0 {
				break
			}
		}
	}
	return refusals(entries)
}

// exchange returns those that a transaction was refused with, by the fault of any of them.
func (s *Services) exchange(ctx context.Context, lock *HeldLease, all []*entry) (again []*entry) {
	held := s.prepare(ctx, lock, all)
	for _, some := range inSize(all) {
		made, err := s.commit(ctx, held, some)
		if err != nil {
			refuse(some, err)
		} else if !made {
			again = append(again, some...)
			for _, e := range some {
				e.refused = changed(e.Service)
				if e.Known != nil {
					e.Known.kept = nil
				}
			}
		}
	}
	return again
}

// inSize are those that are not refused, as many in each as one transaction may write.
func inSize(all []*entry) (parts [][]*entry) {
	size := 0
	for _, e := range all {
		if e.refused != nil {
			continue
		}
		if size += e.size; len(parts) == 0 || size > bytesTogether {
			parts, size = append(parts, nil), e.size
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], e)
	}
	return parts
}

// commit writes all of them, or nothing.
func (s *Services) commit(ctx context.Context, held []clientv3.Cmp, all []*entry) (made bool, err error) {
	var puts []clientv3.Op
	unchanged := slices.Clone(held)
	for _, e := range all {
		unchanged, puts = append(unchanged, e.unchanged...), append(puts, e.puts...)
	}
	answer, err := s.Etcd.KV().Txn(ctx).If(unchanged...).Then(puts...).Commit()
	if err != nil {
		return false, etcd.Failed(err, "service %s: writing it to etcd", keyOf(all[0].Service))
	}
	if !answer.Succeeded {
		return false, nil
	}
	for _, e := range all {
		e.written(answer.Header.Revision)
	}
	return true, nil
}

func (e *entry) written(revision int64) {
	if e.becomes != nil {
		e.becomes.ResourceVersion = strconv.FormatInt(revision, 10)
		*e.Service = *e.becomes
	}
	if e.Known == nil {
		return
	}
	e.Known.kept = e.kept
	for _, put := range e.puts {
		key := put.KeyBytes()
		e.kept[string(key)] = &mvccpb.KeyValue{Key: key, Value: put.ValueBytes(), ModRevision: revision}
	}
}

// prepare reads and changes what exchanges are about, and returns what has to hold besides for the
// lock to be held.
func (s *Services) prepare(ctx context.Context, lock *HeldLease, all []*entry) (held []clientv3.Cmp) {
	var leases, keys []string
	if lock != nil {
		leases = []string{s.leaseKey(lock.Lease)}
	}
	for _, e := range all {
		*e = entry{Exchange: e.Exchange}
		keys = append(keys, s.keysOf(e)...)
	}
	kept, err := s.look(ctx, all, append(keys, leases...))
	if err == nil && lock != nil {
		held, err = s.checkLock(kept, lock)
	}
	if err != nil {
		refuse(all, err)
		return nil
	}
	for _, e := range all {
		e.kept = map[string]*mvccpb.KeyValue{}
		for _, key := range append(s.keysOf(e), leases...) {
			e.kept[key] = kept[key]
		}
		e.refused = s.change(e)
	}
	return held
}

func (s *Services) keysOf(e *entry) []string {
	keys := []string{s.serviceKey(keyOf(e.Service))}
	for name := range e.Addresses {
		keys = append(keys, s.addressKey(name))
	}
	if e.Make != nil {
		keys = append(keys, s.addressKey(e.Make.Like))
	}
	return keys
}

// look is what is known of all keys, or what is read of them.
func (s *Services) look(ctx context.Context, all []*entry, keys []string) (map[string]*mvccpb.KeyValue, error) {
	known := map[string]*mvccpb.KeyValue{}
	for _, e := range all {
		if e.Known != nil {
			maps.Copy(known, e.Known.kept)
		}
	}
	if slices.ContainsFunc(keys, func(key string) bool { return known[key] == nil }) {
		return s.read(ctx, keys)
	}
	return known, nil
}

// read gets what there is of some keys in one revision.
func (s *Services) read(ctx context.Context, keys []string) (map[string]*mvccpb.KeyValue, error) {
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(key)
	}
	answer, err := s.Etcd.KV().Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, etcd.Failed(err, "reading Services from etcd")
	}
	all := map[string]*mvccpb.KeyValue{}
	for _, r := range answer.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			all[string(kv.Key)] = kv
		}
	}
	return all, nil
}
