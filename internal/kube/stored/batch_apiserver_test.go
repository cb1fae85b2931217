//go:build apiserver && long

package stored

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/testing/apitest"
)

const manager = "test"

// reserved is an IPAddress as one is asked for through an API server.
func reserved(name, service string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"example.com/why": "it is to go there"},
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: manager},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: "default", Name: service,
		}},
	}
}

var errTaken = errors.New("it is taken")

// reservation makes an IPAddress for a Service, unless there is one that is not of the manager.
func reservation(svc *corev1.Service, name string) Exchange {
	return Exchange{
		Service: svc,
		Addresses: map[string]func(*networkingv1.IPAddress) error{name: func(ip *networkingv1.IPAddress) error {
			if !ip.CreationTimestamp.IsZero() {
				if ip.Labels[networkingv1.LabelManagedBy] != manager {
					return errTaken
				}
				return nil
			}
			want := reserved(name, svc.Name)
			ip.CreationTimestamp = metav1.Now().Rfc3339Copy()
			ip.Labels, ip.Annotations, ip.Spec = want.Labels, want.Annotations, want.Spec
			return nil
		}},
		Make: &Making{Manager: manager, Like: svc.Spec.ClusterIP},
	}
}

// TestMadeAsByAnAPIServer: an IPAddress that is made in etcd is one that an API server has made,
// for those who read and for those who watch. It refuses others the name, and takes changes and
// deletion.
func TestMadeAsByAnAPIServer(t *testing.T) {
	s := serve(t)
	svc := create(t, s)
	seen, err := s.Watch(t.Context(), &networkingv1.IPAddressList{})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	if err := exchange(t, services(t, s.Etcd), reservation(svc, "10.96.1.1")); err != nil {
		t.Fatal(err)
	}
	want := reserved("10.96.1.2", svc.Name)
	if err := s.Create(t.Context(), want, client.FieldOwner(manager)); err != nil {
		t.Fatal(err)
	}
	added := []*networkingv1.IPAddress{nextAdded(t, seen, "10.96.1.1"), nextAdded(t, seen, "10.96.1.2")}
	have := &networkingv1.IPAddress{}
	if err := s.Get(t.Context(), types.NamespacedName{Name: "10.96.1.1"}, have); err != nil {
		t.Fatal(err)
	}
	if have.UID == "" || have.UID == want.UID || time.Since(have.CreationTimestamp.Time).Abs() > time.Minute {
		t.Errorf("it has UID %q and is of %s", have.UID, have.CreationTimestamp)
	}
	for _, of := range []*networkingv1.IPAddress{have, added[0]} {
		if got, want := timeless(of), timeless(added[1]); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("it is\n%+v\nwant\n%+v", got, want)
		}
	}
	if err := s.Create(t.Context(), reserved("10.96.1.1", "thief")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("another creates it: %v", err)
	}
	thief := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "thief"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.1.1", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if err := s.Create(t.Context(), thief); err == nil || !strings.Contains(err.Error(), "already allocated") {
		t.Errorf("another Service is given it: %v", err)
	}
	have.Labels["example.com/more"] = "yes"
	if err := s.Update(t.Context(), have, client.FieldOwner("another")); err != nil || len(have.ManagedFields) != 2 {
		t.Errorf("it cannot be changed like others: %v, %+v", err, have.ManagedFields)
	}
	if err := s.Delete(t.Context(), have, client.Preconditions{UID: &have.UID}); err != nil {
		t.Errorf("it cannot be deleted: %v", err)
	}
}

func nextAdded(t *testing.T, seen watch.Interface, name string) *networkingv1.IPAddress {
	t.Helper()
	for {
		select {
		case e := <-seen.ResultChan():
			if ip, is := e.Object.(*networkingv1.IPAddress); is && ip.Name == name && e.Type == watch.Added {
				return ip
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s is not seen to be added", name)
		}
	}
}

// timeless is an IPAddress without what is another for each.
func timeless(ip *networkingv1.IPAddress) *networkingv1.IPAddress {
	ip = ip.DeepCopy()
	ip.Name, ip.UID, ip.ResourceVersion, ip.CreationTimestamp = "", "", "", metav1.Time{}
	for i := range ip.ManagedFields {
		ip.ManagedFields[i].Time = nil
	}
	return ip
}

// many creates as many Services as take several transactions.
func many(t *testing.T, s *apitest.Server) (all []*corev1.Service, asked []Exchange) {
	t.Helper()
	for i := range 2*together + 5 {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("cart-%d", i)},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.2.%d", i+1), Ports: []corev1.ServicePort{{Port: 80}}},
		}
		if err := s.Create(t.Context(), svc); err != nil {
			t.Fatal(err)
		}
		all, asked = append(all, svc), append(asked, reservation(svc, fmt.Sprintf("10.96.3.%d", i+1)))
	}
	return all, asked
}

// TestOneRefusalHoldsUpNoOther: of many, those are made that can be, also where one is taken or
// changed between the look and the write; and what is there already is left as it is.
func TestOneRefusalHoldsUpNoOther(t *testing.T) {
	s := serve(t)
	all, asked := many(t, s)
	kept := services(t, s.Etcd)
	mine, theirs := reserved("10.96.3.2", "cart-1"), reserved("10.96.3.3", "thief")
	theirs.Labels[networkingv1.LabelManagedBy] = "another"
	for _, ip := range []*networkingv1.IPAddress{mine, theirs} {
		if err := s.Create(t.Context(), ip); err != nil {
			t.Fatal(err)
		}
	}
	update(t, s, "cart-3") // since it was listed
	meanwhile := func(i int, act func()) {
		name := fmt.Sprintf("10.96.3.%d", i+1)
		reserve := asked[i].Addresses[name]
		asked[i].Addresses[name] = func(ip *networkingv1.IPAddress) error {
			if act != nil {
				act()
				act = nil
			}
			return reserve(ip)
		}
	}
	meanwhile(4, func() { // in the first transaction
		taken := reserved("10.96.3.5", "thief")
		taken.Labels[networkingv1.LabelManagedBy] = "another"
		if err := s.Create(t.Context(), taken); err != nil {
			t.Error(err)
		}
	})
	meanwhile(together+1, func() { update(t, s, all[together+1].Name) }) // in the second

	for i, err := range kept.Exchange(t.Context(), nil, asked...) {
		var want error
		switch i {
		case 2, 4:
			want = errTaken
		case 3, together + 1:
			want = ErrChanged
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", all[i].Name, err, want)
		}
		ip := &networkingv1.IPAddress{}
		got := s.Get(t.Context(), types.NamespacedName{Name: fmt.Sprintf("10.96.3.%d", i+1)}, ip)
		if made := got == nil && ip.Spec.ParentRef.Name == all[i].Name; made != (want == nil) {
			t.Errorf("%s: its address is %+v (%v)", all[i].Name, ip.Spec.ParentRef, got)
		}
	}
	is := &networkingv1.IPAddress{}
	if err := s.Get(t.Context(), types.NamespacedName{Name: "10.96.3.2"}, is); err != nil || is.UID != mine.UID {
		t.Errorf("what was there has UID %s now, want %s (%v)", is.UID, mine.UID, err)
	}
}

func update(t *testing.T, s *apitest.Server, name string) {
	t.Helper()
	svc := get(t, s, name)
	svc.Spec.Ports[0].Port = 8080
	if err := s.Update(t.Context(), svc); err != nil {
		t.Error(err)
	}
}

// counted counts the requests to an etcd.
type counted struct {
	*etcd.Client
	requests int
}

func (c *counted) KV() clientv3.KV {
	c.requests++
	return c.Client.KV()
}

// TestRequestsToEtcd: many share two requests, one look and one write; and what a write has left is
// not looked at before the next, unless it has changed.
func TestRequestsToEtcd(t *testing.T) {
	s := serve(t)
	all, asked := many(t, s)
	kept := services(t, s.Etcd)
	c := &counted{Client: kept.Etcd.(*etcd.Client)}
	kept.Etcd = c
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lock"}}
	if err := s.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	lock := &HeldLease{Lease: client.ObjectKeyFromObject(lease), Holds: func(*coordinationv1.Lease) bool { return true }}
	takes := func(what string, want int, exchanges ...Exchange) {
		t.Helper()
		c.requests = 0
		if err := errors.Join(kept.Exchange(t.Context(), lock, exchanges...)...); err != nil || c.requests != want {
			t.Errorf("%s: %d requests, want %d (%v)", what, c.requests, want, err)
		}
	}
	const parts = 3
	takes("reservations", 2*parts, asked...)
	same := func(*networkingv1.IPAddress) error { return nil }
	for i, svc := range all {
		name := fmt.Sprintf("10.96.3.%d", i+1)
		asked[i] = Exchange{
			Service: svc, Known: &Known{},
			Addresses: map[string]func(*networkingv1.IPAddress) error{name: same, svc.Spec.ClusterIP: nil},
		}
	}
	takes("what is to be known", 2*parts, asked...)
	for i := range asked {
		asked[i].Change = func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{fmt.Sprintf("10.96.3.%d", i+1)} }
	}
	takes("one that is known", 1, asked[0])
	takes("the same again", 1, asked[0])
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	if err := s.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	takes("one after a renewal", 3, asked[1])
	if svc := get(t, s, all[1].Name); svc.Spec.ExternalIPs[0] != "10.96.3.2" || svc.ResourceVersion != all[1].ResourceVersion {
		t.Errorf("it is %+v of %s, want it in %s", svc.Spec, svc.ResourceVersion, all[1].ResourceVersion)
	}
	update(t, s, all[2].Name)
	if err := kept.Exchange(t.Context(), lock, asked[2])[0]; !errors.Is(err, ErrChanged) {
		t.Errorf("one that has changed since: %v", err)
	}
}

// TestManyUnderALock: a renewal in between costs a try, and who has lost the lock neither makes nor
// deletes an address.
func TestManyUnderALock(t *testing.T) {
	s := serve(t)
	_, asked := many(t, s)
	kept := services(t, s.Etcd)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lock"}}
	if err := s.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	renewals := 0
	lock := &HeldLease{Lease: client.ObjectKeyFromObject(lease), Holds: func(l *coordinationv1.Lease) bool {
		if renewals++; renewals == 1 { // right after it was seen to be held
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			if err := s.Update(t.Context(), lease); err != nil {
				t.Error(err)
			}
		}
		return l.Annotations["stolen"] == ""
	}}
	if err := errors.Join(kept.Exchange(t.Context(), lock, asked...)...); err != nil {
		t.Fatalf("with a Lease that is renewed meanwhile: %v", err)
	}
	if renewals < 4 {
		t.Errorf("the lock was looked at %d times", renewals)
	}
	versions := versionsOf(t, s)
	stale := maps.Clone(versions)
	stale["10.96.3.1"] = "1"
	renewals = 0
	left, err := kept.DeleteAddresses(t.Context(), lock, stale)
	if err != nil || !maps.Equal(left, map[string]string{"10.96.3.1": "1"}) {
		t.Errorf("left are %v (%v), want the one that was seen in another revision", left, err)
	}
	eachDeletedAlone(t, s, slices.Collect(maps.Keys(versions)))

	lease.Annotations = map[string]string{"stolen": "yes"}
	if err := s.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	versions = versionsOf(t, s)
	left, err = kept.DeleteAddresses(t.Context(), lock, versions)
	if !engine.Revoked(err) || !maps.Equal(left, versions) || len(left) != 1 {
		t.Errorf("without the lock: %v, left are %v", err, left)
	}
	for _, err := range kept.Exchange(t.Context(), lock, asked...) {
		if !engine.Revoked(err) {
			t.Errorf("without the lock: %v", err)
		}
	}
	if is := versionsOf(t, s); !maps.Equal(is, versions) {
		t.Errorf("without the lock there is %v, was %v", is, versions)
	}
}

// versionsOf are those of the addresses that many asked for.
func versionsOf(t *testing.T, s *apitest.Server) map[string]string {
	t.Helper()
	all := &networkingv1.IPAddressList{}
	if err := s.List(t.Context(), all, client.MatchingLabels{networkingv1.LabelManagedBy: manager}); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, ip := range all.Items {
		versions[ip.Name] = ip.ResourceVersion
	}
	return versions
}

// eachDeletedAlone fails if two addresses were deleted in one revision. An API server says of the
// first that this is all, to those who list or watch from there.
func eachDeletedAlone(t *testing.T, s *apitest.Server, names []string) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Etcd}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := map[int64]string{}
	prefix := (&Services{Prefix: DefaultPrefix}).addressKey("10.96.3.")
	for answer := range c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(1)) {
		for _, e := range answer.Events {
			if e.Type != clientv3.EventTypeDelete {
				continue
			}
			if other := seen[e.Kv.ModRevision]; other != "" {
				t.Errorf("%s and %s are deleted in one revision", other, e.Kv.Key)
			}
			seen[e.Kv.ModRevision] = string(e.Kv.Key)
		}
		if len(seen) >= len(names)-1 || answer.Err() != nil {
			break
		}
	}
	if len(seen) != len(names)-1 {
		t.Errorf("%d of %d are deleted", len(seen), len(names)-1)
	}
}
