package etcd

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// ErrCorrupt says that a snapshot or its database is damaged.
var ErrCorrupt = errors.New("the snapshot is corrupt")

// SnapshotInfo has Hash, Revision, Keys and Size as etcdutl snapshot status.
type SnapshotInfo struct {
	Path string `json:"-"`
	// SHA256 of the database, in hex, as the member that sent it computed it.
	SHA256   string `json:"sha256"`
	Hash     uint32 `json:"hash"`
	Revision int64  `json:"revision"`
	Keys     int    `json:"keys"`
	Size     int64  `json:"size"`
	// Cluster and Member, by ID in hex, that it was taken of, and when, and for which run.
	Cluster string    `json:"cluster,omitempty"`
	Member  string    `json:"member,omitempty"`
	Taken   time.Time `json:"taken,omitzero"`
	Run     string    `json:"run,omitempty"`
}

// verifySnapshot reads a snapshot whole: its hash, the pages of its database, and every key. It
// fails with ErrCorrupt.
func verifySnapshot(path string) (SnapshotInfo, error) {
	info := SnapshotInfo{Path: path}
	sum, err := checkTrailer(path)
	if err != nil {
		return info, err
	}
	info.SHA256 = sum
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return info, fmt.Errorf("%s: %w: its database does not open: %w", path, ErrCorrupt, err)
	}
	defer func() { _ = db.Close() }()
	if err := db.View(info.read); err != nil {
		return info, fmt.Errorf("%s: %w: %w", path, ErrCorrupt, err)
	}
	return info, nil
}

// checkTrailer compares the bytes with the hash behind them: databases are whole sectors, so a
// surplus of 32 bytes is the hash (hasChecksum in
// go.etcd.io/etcd/etcdutl/v3/snapshot/v3_snapshot.go).
func checkTrailer(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	stat, err := f.Stat()
	if err != nil {
		return "", err
	}
	size := stat.Size() - sha256.Size
	if size <= 0 || size%512 != 0 {
		return "", fmt.Errorf("%s: %w: with %d bytes it does not end with its hash", path, ErrCorrupt, stat.Size())
	}
	h, trailer := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(h, f, size); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if _, err := io.ReadFull(f, trailer); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if sum := h.Sum(nil); !bytes.Equal(sum, trailer) {
		return "", fmt.Errorf("%s: %w: its hash is %x, and should be %x", path, ErrCorrupt, sum[:8], trailer[:8])
	}
	return hex.EncodeToString(trailer), nil
}

// read visits all buckets as Status in go.etcd.io/etcd/etcdutl/v3/snapshot/v3_snapshot.go does, for
// the same hash.
func (info *SnapshotInfo) read(tx *bbolt.Tx) error {
	for err := range tx.Check() {
		return fmt.Errorf("its pages are not sound: %w", err)
	}
	info.Size = tx.Size()
	h, live := crc32.New(crc32.MakeTable(crc32.Castagnoli)), map[string]struct{}{}
	err := tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
		_, _ = h.Write(name)
		return b.ForEach(func(k, v []byte) error {
			_, _ = h.Write(k)
			_, _ = h.Write(v)
			if string(name) == "key" {
				return info.count(k, v, live)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	if tx.Bucket([]byte("key")) == nil {
		return errors.New("it is not a database of etcd")
	}
	info.Hash, info.Keys = h.Sum32(), len(live)
	info.Revision = max(info.Revision, compacted(tx))
	return nil
}

// revisionSize is main, an underscore and sub; deletions have a t behind
// (go.etcd.io/etcd/server/v3/storage/mvcc/revision.go).
const revisionSize = 8 + 1 + 8

func (info *SnapshotInfo) count(k, v []byte, live map[string]struct{}) error {
	if len(k) < revisionSize || k[8] != '_' {
		return fmt.Errorf("%x is not a revision", k)
	}
	kv := &mvccpb.KeyValue{}
	if err := kv.Unmarshal(v); err != nil {
		return fmt.Errorf("revision %x: %w", k, err)
	}
	info.Revision = int64(binary.BigEndian.Uint64(k)) //nolint:gosec // etcd counts them in an int64
	if len(k) > revisionSize && k[revisionSize] == 't' {
		delete(live, string(kv.Key))
	} else {
		live[string(kv.Key)] = struct{}{}
	}
	return nil
}

// compacted is the last compacted revision, which is the database's if only deletions were
// compacted (restore in go.etcd.io/etcd/server/v3/storage/mvcc/kvstore.go).
func compacted(tx *bbolt.Tx) int64 {
	meta := tx.Bucket([]byte("meta"))
	if meta == nil {
		return 0
	}
	if b := meta.Get([]byte("finishedCompactRev")); len(b) >= revisionSize {
		return int64(binary.BigEndian.Uint64(b)) //nolint:gosec // as above
	}
	return 0
}
