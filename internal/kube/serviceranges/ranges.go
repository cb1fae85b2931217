package serviceranges

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RangeAPI is the version in which a cluster serves ServiceCIDRs and IPAddresses.
type RangeAPI string

// Kubernetes 1.33 and later serve v1; 1.31 and 1.32 serve v1beta1 if it is turned on.
const (
	RangesV1      RangeAPI = "v1"
	RangesV1Beta1 RangeAPI = "v1beta1"
	// Bitmap is for neither: API servers allocate from a bitmap of the range in their flag.
	Bitmap RangeAPI = "bitmap"
)

// Finder asks for the RangeAPI of a cluster, and remembers the answer.
type Finder struct {
	// resources reads the list of resources of a version of networking.k8s.io.
	resources func(ctx context.Context, version string) ([]byte, error)

	mu    sync.Mutex
	known bool
	api   RangeAPI
}

// NewFinder asks with resources, which returns the list of resources of a version of
// networking.k8s.io, or a NotFound error.
func NewFinder(resources func(ctx context.Context, version string) ([]byte, error)) *Finder {
	return &Finder{resources: resources}
}

func (f *Finder) Find(ctx context.Context) (RangeAPI, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known {
		return f.api, nil
	}
	f.api = Bitmap
	for _, api := range []RangeAPI{RangesV1, RangesV1Beta1} {
		serves, err := f.serves(ctx, api)
		if err != nil {
			return "", err
		}
		if serves {
			f.api = api
			break
		}
	}
	f.known = true
	return f.api, nil
}

// forget makes the next find ask again, since a cluster can be upgraded while replumb runs.
func (f *Finder) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known, f.api = false, ""
}

func (f *Finder) serves(ctx context.Context, api RangeAPI) (bool, error) {
	body, err := f.resources(ctx, string(api))
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsForbidden(err): // assume what clusters have from Kubernetes 1.33 on
		return api == RangesV1, nil
	case err != nil:
		return false, err
	}
	list := &metav1.APIResourceList{}
	if err := json.Unmarshal(body, list); err != nil {
		return false, fmt.Errorf("reading the resources of networking.k8s.io/%s: %w", api, err)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
	}
	return has("servicecidrs") && has("ipaddresses"), nil
}

// betaOf is an object of v1 in v1beta1; false for all but ServiceCIDRs and IPAddresses.
func betaOf(o any) (any, bool) {
	switch o := o.(type) {
	case *networkingv1.ServiceCIDR:
		return &networkingv1beta1.ServiceCIDR{
			ObjectMeta: o.ObjectMeta,
			Spec:       networkingv1beta1.ServiceCIDRSpec(o.Spec),
			Status:     networkingv1beta1.ServiceCIDRStatus(o.Status),
		}, true
	case *networkingv1.IPAddress:
		return &networkingv1beta1.IPAddress{
			ObjectMeta: o.ObjectMeta,
			Spec:       networkingv1beta1.IPAddressSpec{ParentRef: (*networkingv1beta1.ParentReference)(o.Spec.ParentRef)},
		}, true
	case *networkingv1.ServiceCIDRList:
		return &networkingv1beta1.ServiceCIDRList{}, true
	case *networkingv1.IPAddressList:
		return &networkingv1beta1.IPAddressList{}, true
	}
	return nil, false
}

func fromBeta(beta, into any) {
	switch o := into.(type) {
	case *networkingv1.ServiceCIDR:
		b := beta.(*networkingv1beta1.ServiceCIDR)
		*o = networkingv1.ServiceCIDR{
			TypeMeta:   o.TypeMeta,
			ObjectMeta: b.ObjectMeta,
			Spec:       networkingv1.ServiceCIDRSpec(b.Spec),
			Status:     networkingv1.ServiceCIDRStatus(b.Status),
		}
	case *networkingv1.IPAddress:
		b := beta.(*networkingv1beta1.IPAddress)
		*o = networkingv1.IPAddress{
			TypeMeta: o.TypeMeta, ObjectMeta: b.ObjectMeta,
			Spec: networkingv1.IPAddressSpec{ParentRef: (*networkingv1.ParentReference)(b.Spec.ParentRef)},
		}
	case *networkingv1.ServiceCIDRList:
		b := beta.(*networkingv1beta1.ServiceCIDRList)
		o.ListMeta, o.Items = b.ListMeta, make([]networkingv1.ServiceCIDR, len(b.Items))
		for i := range b.Items {
			fromBeta(&b.Items[i], &o.Items[i])
		}
	case *networkingv1.IPAddressList:
		b := beta.(*networkingv1beta1.IPAddressList)
		o.ListMeta, o.Items = b.ListMeta, make([]networkingv1.IPAddress, len(b.Items))
		for i := range b.Items {
			fromBeta(&b.Items[i], &o.Items[i])
		}
	}
}
