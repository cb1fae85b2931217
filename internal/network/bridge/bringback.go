package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/network/cidr"
)

// addressless is for how long a Service may be between the patches of a hop before a follower
// ends that, and how long it then waits before it tries again.
const addressless = 20 * time.Second

// strayed is a Service between the patches of a hop, and what is noted of it.
type strayed struct {
	service *corev1.Service
	memo    *networkingv1.IPAddress
}

// lookBetween finds a Service that a run has left without an address. Reservations decide, since
// its owner can write all else.
func (s *view) lookBetween(key types.NamespacedName) *strayed {
	svc, err := s.standing(key)
	if err != nil || svc == nil {
		return nil
	}
	var memo *networkingv1.IPAddress
	held := map[string]*networkingv1.IPAddress{}
	for _, o := range s.holds.of(key) {
		ip := o.(*networkingv1.IPAddress)
		if held[ip.Name] = ip; ip.Name == MemoAddress(svc.UID).String() {
			memo = ip
		}
	}
	if memo == nil || memo.Annotations[v1alpha1.AnnotationHeading] == "" || !leadsTo(svc, key, memo) {
		return nil
	}
	left := memo.Annotations[v1alpha1.AnnotationOldIP]
	if left == memo.Annotations[v1alpha1.AnnotationHeading] {
		left = memo.Annotations[v1alpha1.AnnotationTargetIP]
	}
	if reserved := held[left]; reserved != nil && reserved.Annotations[v1alpha1.AnnotationHeading] == "" {
		return nil // it had arrived, and its owner did that
	}
	return &strayed{service: svc, memo: memo}
}

// leadsTo reports whether a Service is as the first patch of a hop has made it.
func leadsTo(svc *corev1.Service, bridge types.NamespacedName, memo *networkingv1.IPAddress) bool {
	name := svc.Spec.ExternalName
	return svc.Spec.Type == corev1.ServiceTypeExternalName && svc.DeletionTimestamp.IsZero() &&
		(strings.HasPrefix(name, bridge.Name+"."+bridge.Namespace+".svc.") || name != "" && name == memo.Annotations[v1alpha1.AnnotationOldIP])
}

// bringBack completes a hop whose run has ended, once that is certain: as long as somebody has the
// lock, it is theirs.
func (f *Follower) bringBack(ctx context.Context, key types.NamespacedName, s *strayed) {
	if wait := f.patience(key); wait > 0 {
		f.queue.AddAfter(key, wait)
		return
	}
	text, err := f.arrive(ctx, key, s)
	if err != nil {
		text = fmt.Sprintf("service %s has no address, and is given none: %v", client.ObjectKeyFromObject(s.service), err)
	}
	f.mu.Lock()
	told := f.away[key].told
	f.away[key] = absence{since: time.Now(), told: text}
	f.mu.Unlock()
	if f.Told != nil && text != "" && text != told {
		f.Told(text)
	}
	f.queue.AddAfter(key, cmp.Or(f.Addressless, addressless)) // if it has not worked
}

// patience is the wait before a Service without an address is given one.
func (f *Follower) patience(key types.NamespacedName) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away[key].since.IsZero() {
		f.away[key] = absence{since: time.Now()}
	}
	wait := cmp.Or(f.Addressless, addressless)
	if f.Leads != nil && !f.Leads() {
		wait += headStart
	}
	return wait - time.Since(f.away[key].since)
}

// absence is since when a Service is without an address, or was last tried, and what was said of
// it.
type absence struct {
	since time.Time
	told  string
}

// arrive sends the second patch of a hop, by what is noted of the Service and to the version that
// is read after the lock was found free. Nothing is done while it is held.
func (f *Follower) arrive(ctx context.Context, key types.NamespacedName, s *strayed) (text string, err error) {
	if held, err := f.Locked(ctx); held || err != nil {
		return "", err
	}
	svc, memo := &corev1.Service{}, &networkingv1.IPAddress{}
	if err := f.Client.Get(ctx, client.ObjectKeyFromObject(s.service), svc); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	if err := f.Client.Get(ctx, client.ObjectKeyFromObject(s.memo), memo); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	held, is := HeldFor(memo)
	if svc.UID != s.service.UID || !is || held != key || !leadsTo(svc, key, memo) {
		return "", nil
	}
	a, err := arrivalOf(svc, memo)
	if err != nil {
		return "", err
	}
	if err := mayArrive(ctx, f.Client, memo); err != nil {
		return "", err
	}
	note, err := f.send(ctx, a)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("service %s was without an address, since the run that moved it has ended; it is at %s now%s",
		client.ObjectKeyFromObject(svc), a.At, note), nil
}

// arrivalOf goes by the memo, which only replumb writes.
func arrivalOf(svc *corev1.Service, memo *networkingv1.IPAddress) (Arrival, error) {
	a := Arrival{Service: svc, Original: &corev1.ServiceSpec{}, Now: time.Now()}
	if err := json.Unmarshal([]byte(memo.Annotations[v1alpha1.AnnotationOriginalSpec]), a.Original); err != nil {
		return a, fmt.Errorf("ipaddress %s: annotation %s: %w", memo.Name, v1alpha1.AnnotationOriginalSpec, err)
	}
	var errs [2]error
	a.At, errs[0] = netip.ParseAddr(memo.Annotations[v1alpha1.AnnotationHeading])
	a.Target, errs[1] = netip.ParseAddr(memo.Annotations[v1alpha1.AnnotationTargetIP])
	return a, errors.Join(errs[:]...)
}

// misled is an error about what others have changed of a migration between the patches of a hop.
func misled(migration, format string, args ...any) error {
	return &fault.Hinted{
		Err:  fmt.Errorf(format, args...),
		Hint: "others have changed migration " + migration + " meanwhile; run apply or rollback, which completes the hop by what is recorded",
	}
}

// mayArrive is nil if both addresses of a memo are in the ranges of its migration.
func mayArrive(ctx context.Context, c client.Reader, memo *networkingv1.IPAddress) error {
	m := &v1alpha1.Migration{}
	name := memo.Labels[v1alpha1.LabelMigration]
	if err := c.Get(ctx, types.NamespacedName{Name: name}, m); err != nil {
		return fmt.Errorf("migration %s: %w", name, err)
	}
	if m.Spec.ServiceCIDR == nil {
		return misled(name, "migration %s moves no Services", name)
	}
	for key, texts := range map[string][]string{
		v1alpha1.AnnotationOldIP: m.Spec.ServiceCIDR.From, v1alpha1.AnnotationTargetIP: m.Spec.ServiceCIDR.To,
	} {
		a, err := netip.ParseAddr(memo.Annotations[key])
		if err != nil {
			return fmt.Errorf("ipaddress %s: annotation %s: %w", memo.Name, key, err)
		}
		var ranges []netip.Prefix
		for _, text := range texts {
			if p, err := netip.ParsePrefix(text); err == nil {
				ranges = append(ranges, p)
			}
		}
		if !cidr.Contains(ranges, a) {
			return misled(name, "address %s is in no range of migration %s", a, name)
		}
	}
	return nil
}

// send gives the Service its address, without the node ports that others were given meanwhile.
func (f *Follower) send(ctx context.Context, a Arrival) (note string, err error) {
	err = f.patch(ctx, a)
	if !IsPortTaken(err) {
		return "", err
	}
	without, lost, listing := WithoutTakenPorts(ctx, f.Client, client.ObjectKeyFromObject(a.Service), a.Original)
	if listing != nil || len(lost) == 0 {
		return "", errors.Join(err, listing)
	}
	a.Original = without
	return ", with other node ports: " + strings.Join(lost, ", "), f.patch(ctx, a)
}

func (f *Follower) patch(ctx context.Context, a Arrival) error {
	body, err := json.Marshal(a.Patch())
	if err != nil {
		return err
	}
	err = f.Client.Patch(ctx, a.Service.DeepCopy(), client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) { // an event is to come
		return nil
	}
	return err
}
