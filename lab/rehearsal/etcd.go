package rehearsal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
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

// numerous are the resources that clusters have thousands of, by the version that API servers keep them in, with where that is
// (k8s.io/kubernetes pkg/kubeapiserver/default_storage_factory_builder.go).
func numerous(r schema.GroupVersionResource) (at string, yes bool) {
	at, yes = map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "pods"}:                                      "pods",
		{Version: "v1", Resource: "configmaps"}:                                "configmaps",
		{Version: "v1", Resource: "secrets"}:                                   "secrets",
		{Version: "v1", Resource: "services"}:                                  "services/specs",
		{Group: "apps", Version: "v1", Resource: "deployments"}:                "deployments",
		{Group: "apps", Version: "v1", Resource: "replicasets"}:                "replicasets",
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}: "endpointslices",
		ipAddresses(): "ipaddresses",
	}[r]
	return at, yes
}

// ipAddresses are what API servers keep of each address that a Service has.
func ipAddresses() schema.GroupVersionResource {
	return networkingv1.SchemeGroupVersion.WithResource("ipaddresses")
}

// direct reports whether an object is written where API servers keep it, as the snapshot has it: an API server has admitted it once, and to have
// another do so takes most of a rehearsal. Services with node ports are not: API servers give those out by a list of their own.
func (o *object) direct() bool {
	if _, yes := numerous(o.GroupVersionResource); !yes {
		return false
	}
	switch o.Resource {
	case "services":
		least, _ := nodePorts(o)
		return least == 0
	case ipAddresses().Resource:
		return o.GetLabels()[networkingv1.LabelManagedBy] == allocator
	}
	return true
}

// allocator is what API servers say that gives addresses to Services (k8s.io/kubernetes pkg/registry/core/service/ipallocator).
const allocator = "ipallocator.k8s.io"

// allocated are the IPAddresses that an API server would make for a Service.
func allocated(svc *object) []*object {
	var all []*object
	for _, ip := range slices.Compact(slices.Sorted(slices.Values(clusterIPs(svc)))) {
		a, err := netip.ParseAddr(ip)
		if err != nil { // it has none
			continue
		}
		family := corev1.IPv4Protocol
		if a.Is6() {
			family = corev1.IPv6Protocol
		}
		o := &object{GroupVersionResource: ipAddresses(), stage: middle, Unstructured: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": networkingv1.SchemeGroupVersion.String(), "kind": "IPAddress",
			"spec": map[string]any{"parentRef": map[string]any{
				"group": "", "resource": "services", "namespace": svc.GetNamespace(), "name": svc.GetName(),
			}},
		}}}
		o.SetName(a.String())
		o.SetUID(uuid.NewUUID())
		o.SetCreationTimestamp(svc.GetCreationTimestamp())
		o.SetLabels(map[string]string{networkingv1.LabelManagedBy: allocator, networkingv1.LabelIPAddressFamily: string(family)})
		all = append(all, o)
	}
	return all
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

// put writes objects that are not there yet, and reports each by kept. The API server sees them as it sees what another one writes.
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
		at, _ := numerous(o.GroupVersionResource)
		key := path.Join(prefix, at, o.GetNamespace(), o.GetName())
		missing := clientv3.Compare(clientv3.CreateRevision(key), "=", 0) // what the API server made first stays as it made it
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{missing}, []clientv3.Op{clientv3.OpPut(key, string(value))}, nil))
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
