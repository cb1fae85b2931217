package serviceranges

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

func reserved(address string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{
			Name: address, Annotations: map[string]string{"note": "kept"},
			Labels: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleHold, networkingv1.LabelManagedBy: "replumb"},
		},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "shop", Name: "cart-bridge"},
		},
	}
}

// TestWhatStandsForAnAddress has an IPAddress be the same after it was a Service, in either form.
func TestWhatStandsForAnAddress(t *testing.T) {
	for address, name := range map[string]string{
		"10.96.0.7": "hold-10-96-0-7", "fd00::": "hold-fd00-0000-0000-0000-0000-0000-0000-0000",
	} {
		want := reserved(address)
		svc := standIn(want, netip.MustParseAddr(address))
		if svc.Name != name || svc.Namespace != v1alpha1.SystemNamespace || !isHold(svc) || svc.Labels[labelProxy] == "" {
			t.Errorf("%s is %+v", address, svc.ObjectMeta)
		}
		if got := reservedBy(svc); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s came back as %+v", address, got)
		}
		note := reservedBy(withoutClusterIP(svc))
		if note.Annotations[v1alpha1.AnnotationNoted] == "" || note.Spec.ParentRef.Name != "cart-bridge" {
			t.Errorf("%s is noted as %+v", address, note)
		}
	}
}

func TestWhatTheAllocatorSays(t *testing.T) {
	invalid := func(text string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Message: text}}
	}
	for text, want := range map[string][3]bool{ // allocated, out of range, other flag
		"failed to allocate IP 10.96.0.7: provided IP is already allocated":                            {true, false, false},
		"the provided IP (10.0.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16": {false, true, false},
		`spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`:                    {false, true, false},
		"failed to allocate IP 10.96.0.7: the provided range does not match the current range":         {false, false, true},
		"spec.ports: Required value": {},
	} {
		err := invalid(text)
		if got := [3]bool{allocated(err), outOfRange(err), otherFlag(err)}; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if r, known := RangeIn(invalid("The range of valid IPs is fd00:10:96::/108")); !known || r.String() != "fd00:10:96::/108" {
		t.Errorf("%s, %v", r, known)
	}
	if _, known := RangeIn(nil); known {
		t.Error("no error names a range")
	}
}

// TestTheOneRange has the flag be a ServiceCIDR that no one can change, learnt from the pods of API
// servers where it cannot be asked for.
func TestTheOneRange(t *testing.T) {
	asked := 0
	c := ranged{WithWatch: fake.NewClientBuilder().Build(), Finder: finderOf(nil, &asked)}
	in := bitmap{WithWatch: c.WithWatch, ask: func(context.Context, client.WithWatch) ([]netip.Prefix, error) {
		return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, nil
	}}
	all, one := &networkingv1.ServiceCIDRList{}, &networkingv1.ServiceCIDR{}
	if err := errors.Join(in.list(t.Context(), all), in.get(t.Context(), FlagRange, one)); err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != 1 || one.Spec.CIDRs[0] != "10.96.0.0/16" || len(one.Status.Conditions) != 1 {
		t.Errorf("%+v", all.Items)
	}
	for verb, err := range map[string]error{
		"create": c.Create(t.Context(), one), "update": c.Update(t.Context(), one), "delete": c.Delete(t.Context(), one),
		"patch": c.Patch(t.Context(), one, client.MergeFrom(one)), "delete all": c.DeleteAllOf(t.Context(), one), "status": c.Status().Update(t.Context(), one),
	} {
		if !errors.As(err, new(*OneRangeError)) || fault.Advice(err) == "" {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

func TestRangeOnCommandLines(t *testing.T) {
	pod := func(name string, words ...string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"component": "kube-apiserver"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Command: words}}},
		}
	}
	old, other := pod(
		"a",
		"kube-apiserver",
		"--service-cluster-ip-range=10.96.0.0/16",
	), pod(
		"b",
		"--service-cluster-ip-range=172.24.0.0/16",
	)
	for name, tt := range map[string]struct {
		pods []client.Object
		want string
	}{
		"one": {[]client.Object{old}, "10.96.0.0/16"}, "two that differ": {[]client.Object{old, other}, ""}, "none": {nil, ""},
	} {
		got, err := commandRanges(t.Context(), fake.NewClientBuilder().WithObjects(tt.pods...).Build())
		switch {
		case tt.want == "":
			if !errors.As(err, new(*UnknownRangeError)) || !apierrors.IsNotFound(err) || fault.Advice(err) == "" {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		case err != nil || len(got) != 1 || got[0].String() != tt.want:
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestStranded finds reservations of a cluster without ServiceCIDRs on one that has them, and no
// one's else.
func TestStranded(t *testing.T) {
	hold := standIn(reserved("10.96.0.7"), netip.MustParseAddr("10.96.0.7"))
	tenants := hold.DeepCopy()
	tenants.Namespace = "shop"
	for api, want := range map[RangeAPI]int{Bitmap: 0, RangesV1Beta1: 1, RangesV1: 1} {
		if got := Stranded(api, []corev1.Service{*hold, *tenants}); len(got) != want || want == 1 && got[0] != "replumb-system/hold-10-96-0-7" {
			t.Errorf("with %s: %v", api, got)
		}
	}
}
