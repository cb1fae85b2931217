package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/safety/chunklog"
)

const (
	// maxPieces bounds a journal to 16 MiB of etcd's usual 2 GiB.
	maxPieces = 24
	sealAt    = 256 << 10

	dataRecords = "records.jsonl.gz"
	// annotationThinned is how far the records of a ConfigMap were thinned: see levels.
	annotationThinned = "replumb.dev/thinned"
)

// store has a single writer: runs of a migration have a lock.
type store struct {
	client    client.Client
	migration string
	run       string
	// size of a piece, and how many there are at most.
	size, most int

	owner  types.UID
	pieces []*piece
	taken  int
	// stored is the number of the last record of this run that is certainly there.
	stored int
}

// piece is one ConfigMap. Its tail is compressed with every write, and what is sealed never again.
type piece struct {
	object *corev1.ConfigMap
	sealed []byte
	tail   []byte
	full   bool
	// thinned is how far it was; spent is true if there is nothing left to thin.
	thinned int
	spent   bool
}

func newStore(c client.Client, migration, run string) *store {
	return &store{client: c, migration: migration, run: run, size: chunklog.Size, most: maxPieces}
}

func (s *store) ready(ctx context.Context) (bool, error) {
	if s.owner == "" {
		m := &v1alpha1.Migration{}
		err := s.client.Get(ctx, client.ObjectKey{Name: s.migration}, m)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("migration %s: %w", s.migration, err)
		}
		s.owner = m.UID
	}
	if s.pieces != nil {
		return true, nil
	}
	return true, s.load(ctx)
}

func (s *store) load(ctx context.Context) error {
	all, err := list(ctx, s.client, s.migration)
	if err != nil {
		return err
	}
	s.pieces = []*piece{}
	for i := range all {
		cm := &all[i]
		s.taken = max(s.taken, chunklog.Sequence(cm))
		if !ownedBy(cm, s.owner) {
			continue // of a Migration of the same name that is gone, as it will be soon
		}
		p := &piece{object: cm, sealed: cm.BinaryData[dataRecords]}
		p.thinned, _ = strconv.Atoi(cm.Annotations[annotationThinned])
		damaged := each(cm, func(r *record) {
			if r.Run == s.run {
				s.stored = max(s.stored, r.Number)
			}
		})
		p.full = damaged != nil // the reader tells; nothing is added to it
		s.pieces = append(s.pieces, p)
	}
	return nil
}

// put writes lines in order and returns how many are stored. After an error the next call loads
// again.
func (s *store) put(ctx context.Context, lines [][]byte) (stored int, err error) {
	for stored < len(lines) {
		p, err := s.open(ctx)
		if err != nil {
			return stored, err
		}
		n, payload, err := p.fit(lines[stored:], s.size)
		if err != nil {
			return stored, err
		}
		if n == 0 {
			if len(p.sealed)+len(p.tail) == 0 {
				return stored, fmt.Errorf("a record of %d bytes has no room", len(lines[stored]))
			}
			p.full = true
			continue
		}
		if err := s.write(ctx, p, payload); err != nil {
			s.pieces = nil // what is there is not known any more
			return stored, err
		}
		p.take(lines[stored : stored+n])
		stored += n
	}
	return stored, nil
}

func (s *store) open(ctx context.Context) (*piece, error) {
	for _, p := range slices.Backward(s.pieces) {
		if !p.full {
			return p, nil
		}
	}
	if len(s.pieces) < s.most {
		p := &piece{}
		s.pieces = append(s.pieces, p)
		return p, nil
	}
	return s.thin(ctx)
}

var errFull = errors.New("all its room is used, by losses and phases alone")

func (s *store) thin(ctx context.Context) (*piece, error) {
	order := slices.SortedStableFunc(slices.Values(s.pieces), func(a, b *piece) int { return cmp.Compare(a.thinned, b.thinned) })
	for _, p := range order {
		payload, err := p.thinner(s.size * 9 / 10)
		if err != nil {
			return nil, err
		}
		if payload == nil {
			continue
		}
		if err := s.write(ctx, p, payload); err != nil {
			s.pieces = nil
			return nil, err
		}
		p.sealed, p.tail, p.full = payload, nil, false
		return p, nil
	}
	return nil, errFull
}

// thinner is a piece's payload, thinned to a size; nil if that is impossible.
func (p *piece) thinner(size int) ([]byte, error) {
	if p.spent {
		return nil, nil
	}
	for to := min(p.thinned, len(levels())-1); to < len(levels()); to++ {
		plain, err := thinned(p.object, levels()[to])
		if err != nil {
			p.spent = true  // damaged: the reader tells, and it stays as it is
			return nil, nil //nolint:nilerr // see above
		}
		payload, err := chunklog.Compress(plain)
		if err != nil {
			return nil, err
		}
		if len(payload) <= size {
			p.thinned = to + 1
			return payload, nil
		}
	}
	p.spent = true
	return nil, nil
}

func (s *store) write(ctx context.Context, p *piece, payload []byte) error {
	if p.object == nil {
		return s.create(ctx, p, payload)
	}
	o := p.object.DeepCopy()
	fill(o, payload, p.thinned)
	if err := s.client.Update(ctx, o, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("configmap %s/%s: %w", o.Namespace, o.Name, err)
	}
	p.object = o
	return nil
}

func (s *store) create(ctx context.Context, p *piece, payload []byte) error {
	s.taken++
	name := fmt.Sprintf("replumb-journal-%s-%04d", s.migration, s.taken)
	o := &corev1.ConfigMap{ObjectMeta: chunklog.Metadata(
		v1alpha1.JournalNamespace, name, v1alpha1.RoleJournal, s.migration, s.owner, s.taken,
	)}
	fill(o, payload, p.thinned)
	err := s.client.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsNotFound(err) { // the namespace is
		if err := s.found(ctx); err != nil {
			return err
		}
		err = s.client.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("configmap %s/%s: %w", o.Namespace, o.Name, err)
	}
	p.object = o
	return nil
}

func (s *store) found(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: v1alpha1.JournalNamespace, Labels: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleJournal},
	}}
	if err := s.client.Create(ctx, ns, client.FieldOwner(v1alpha1.FieldManager)); client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("namespace %s: %w", ns.Name, err)
	}
	return nil
}

func fill(o *corev1.ConfigMap, payload []byte, thinned int) {
	o.BinaryData = map[string][]byte{dataRecords: payload}
	o.Annotations[chunklog.AnnotationSum] = chunklog.Sum(payload)
	if thinned > 0 {
		o.Annotations[annotationThinned] = strconv.Itoa(thinned)
	}
}

func (p *piece) fit(lines [][]byte, size int) (n int, payload []byte, err error) {
	for n = len(lines); n > 0; n /= 2 {
		member, err := chunklog.Compress(slices.Concat(append([][]byte{p.tail}, lines[:n]...)...))
		if err != nil {
			return 0, nil, err
		}
		if len(p.sealed)+len(member) <= size {
			return n, slices.Concat(p.sealed, member), nil
		}
	}
	return 0, nil, nil
}

func (p *piece) take(lines [][]byte) {
	p.tail = slices.Concat(append([][]byte{p.tail}, lines...)...)
	if len(p.tail) >= sealAt {
		p.sealed, p.tail = p.object.BinaryData[dataRecords], nil
	}
}

func list(ctx context.Context, c client.Client, migration string) ([]corev1.ConfigMap, error) {
	all := &corev1.ConfigMapList{}
	err := c.List(ctx, all, client.InNamespace(v1alpha1.JournalNamespace),
		client.MatchingLabels{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleJournal})
	if err != nil {
		return nil, fmt.Errorf("listing the journal of migration %s: %w", migration, err)
	}
	slices.SortFunc(all.Items, func(a, b corev1.ConfigMap) int { return cmp.Compare(chunklog.Sequence(&a), chunklog.Sequence(&b)) })
	return all.Items, nil
}

func ownedBy(cm *corev1.ConfigMap, owner types.UID) bool {
	return slices.ContainsFunc(cm.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == owner })
}

func each(cm *corev1.ConfigMap, f func(*record)) error {
	return chunklog.Each(cm.BinaryData[dataRecords], cm.Annotations[chunklog.AnnotationSum], func(raw json.RawMessage) error {
		r := &record{}
		if err := json.Unmarshal(raw, r); err != nil {
			return err
		}
		f(r)
		return nil
	})
}
