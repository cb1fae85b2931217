package rehearsal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	// prefix is where API servers keep objects (--etcd-prefix of kube-apiserver), by resource, namespace and name.
	prefix = "/registry"
	// putsAtOnce is how many objects a transaction writes: etcd takes 128 (--max-txn-ops).
	putsAtOnce = 100
	// transactions are under way at once.
	transactions = 4
	// putWithin is how long a transaction may take.
	putWithin = time.Minute
)

// numerous are the resources that clusters have tens of thousands of, in the version that API servers keep them in. They are written where API
// servers keep them, as the snapshot has them: an API server has admitted them once, and to have another do so takes most of a rehearsal. All of
// them are under their own name there (k8s.io/kubernetes pkg/kubeapiserver/default_storage_factory_builder.go has those that are not).
func numerous(r schema.GroupVersionResource) bool {
	return slices.Contains([]schema.GroupVersionResource{
		{Version: "v1", Resource: "pods"},
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "secrets"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "apps", Version: "v1", Resource: "replicasets"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	}, r)
}

// store is the etcd of the rehearsal's API server.
type store struct{ client *clientv3.Client }

func openStore(endpoint string) (*store, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: putWithin, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connecting to the rehearsal's etcd: %w", err)
	}
	return &store{client: c}, nil
}

func (s *store) close() error { return s.client.Close() }

// put writes objects, and reports each by kept. The API server sees them as it sees what another one writes.
func (s *store) put(ctx context.Context, objects []*object, kept func(*object, error)) {
	var eg errgroup.Group
	eg.SetLimit(transactions)
	for part := range slices.Chunk(objects, putsAtOnce) {
		eg.Go(func() error {
			s.putPart(ctx, part, kept)
			return nil // errors are reported
		})
	}
	_ = eg.Wait()
}

func (s *store) putPart(ctx context.Context, objects []*object, kept func(*object, error)) {
	ctx, cancel := context.WithTimeout(ctx, putWithin)
	defer cancel()
	var ops []clientv3.Op
	var sound []*object
	for _, o := range objects {
		value, err := encode(o)
		if err != nil {
			kept(o, err)
			continue
		}
		sound = append(sound, o)
		ops = append(ops, clientv3.OpPut(path.Join(prefix, o.Resource, o.GetNamespace(), o.GetName()), string(value)))
	}
	if len(ops) == 0 {
		return
	}
	_, err := s.client.Txn(ctx).Then(ops...).Commit()
	for _, o := range sound {
		kept(o, err)
	}
}

// encode writes an object as API servers do. What they could not read again would keep them from listing any other.
func encode(o *object) ([]byte, error) {
	if o.GetUID() == "" {
		return nil, errors.New("it has no UID: no API server had it")
	}
	body, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(typed, &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
