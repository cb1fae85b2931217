package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/replumb/replumb/internal/engine"
)

// Digest is of all keys as they were at one revision.
type Digest struct {
	Revision int64
	Keys     int
	// SHA256 is over each key with its value, its revisions, its version and its lease, in hex.
	SHA256 string
}

const pageSize = 500

// Digest reads every key at a revision (zero for now). Readers cannot tell two clusters with the
// same digest apart.
func (c *Client) Digest(ctx context.Context, revision int64) (Digest, error) {
	d, sum, from := Digest{Revision: revision}, sha256.New(), "\x00"
	for {
		page, err := c.page(ctx, from, d.Revision)
		if err != nil {
			return Digest{}, failed(err, "reading keys of etcd at revision %d", d.Revision)
		}
		if d.Revision == 0 {
			d.Revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			add(sum, kv)
		}
		d.Keys += len(page.Kvs)
		if !page.More || len(page.Kvs) == 0 {
			d.SHA256 = hex.EncodeToString(sum.Sum(nil))
			return d, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

func (c *Client) page(ctx context.Context, from string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, changeLimit)
	defer cancel()
	return c.whole.Get(ctx, from, clientv3.WithFromKey(), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
}

// add writes lengths first, so that no two lists of keys are written the same.
func add(h hash.Hash, kv *mvccpb.KeyValue) {
	var b []byte
	for _, n := range []int64{
		int64(len(kv.Key)), int64(len(kv.Value)), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease,
	} {
		b = binary.BigEndian.AppendUint64(b, uint64(n)) //nolint:gosec // only distinguished
	}
	_, _ = h.Write(append(append(b, kv.Key...), kv.Value...))
}

// MemberHash is what one member computes over its history up to a revision.
type MemberHash struct {
	Member string
	Hash   uint32
	// Revision and Compacted must both be equal for hashes to be comparable (HashKVResponse in
	// go.etcd.io/etcd/api/v3/etcdserverpb/rpc.proto).
	Revision, Compacted int64
}

// HashKV asks every voter for its hash at a revision (zero for now). An unhealthy member, or one
// that is behind, is retryable.
func (c *Client) HashKV(ctx context.Context, revision int64) ([]MemberHash, error) {
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return nil, err
	}
	if revision == 0 {
		if revision, err = c.read(ctx, c.whole); err != nil {
			return nil, failed(err, "asking etcd for its revision")
		}
	}
	var hashes []MemberHash
	for i := range cluster.Members {
		m := &cluster.Members[i]
		if m.Learner {
			continue
		}
		err := c.ask(ctx, m, changeLimit, func(ctx context.Context, one *clientv3.Client) error {
			answer, err := one.HashKV(ctx, m.ClientURLs[0], revision)
			if err == nil {
				hashes = append(hashes, MemberHash{m.Called(), answer.Hash, answer.HashRevision, answer.CompactRevision})
			}
			return err
		})
		if err != nil {
			return nil, failed(err, "asking etcd member %s for its hash", m.Called())
		}
	}
	return hashes, nil
}

// Compare fails if members differ, and retryably if their compactions do.
func Compare(hashes []MemberHash) error {
	for _, h := range hashes {
		first := hashes[0]
		switch {
		case h.Revision != first.Revision || h.Compacted != first.Compacted:
			return engine.NotYet("etcd members %s and %s cannot be compared: revisions %d to %d, and %d to %d",
				first.Member, h.Member, first.Compacted, first.Revision, h.Compacted, h.Revision)
		case h.Hash != first.Hash:
			return fmt.Errorf("etcd members %s and %s differ at revision %d: %08x and %08x",
				first.Member, h.Member, h.Revision, first.Hash, h.Hash)
		}
	}
	return nil
}
