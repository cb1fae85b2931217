// Package serviceranges lets ServiceCIDRs and IPAddresses be read and written alike in clusters
// that serve them in V1 or V1Beta1, or that have one range as a flag of their API servers.
package serviceranges

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ranged takes ServiceCIDRs and IPAddresses of v1 for a cluster that serves them in v1beta1, where
// only the name of the version differs, or not at all: see bitmap.
type ranged struct {
	client.WithWatch
	*Finder
}

// NewClient has a client take and give ServiceCIDRs and IPAddresses as those of V1, whichever the
// cluster serves.
func NewClient(c client.WithWatch, f *Finder) client.WithWatch { return ranged{c, f} }

func (r ranged) bitmap() bitmap { return bitmap{WithWatch: r.WithWatch, ask: askRanges} }

// servedForm is an object or a list in the served version, and nil if there is none.
func (r ranged) servedForm(ctx context.Context, o any) (any, error) {
	beta, is := betaOf(o)
	if !is {
		return o, nil
	}
	switch api, err := r.Find(ctx); {
	case err != nil || api == Bitmap:
		return nil, err
	case api == RangesV1:
		return o, nil
	}
	return beta, nil
}

// dispatch sends the served form of an object or a list and converts the answer back.
func dispatch[T any](
	ctx context.Context, r ranged, o T, emulate func(bitmap) error, send func(T) error,
) error {
	served, err := r.servedForm(ctx, o)
	if err != nil {
		return err
	}
	if served == nil {
		return emulate(r.bitmap())
	}
	err = send(served.(T))
	if served != any(o) && err == nil {
		fromBeta(served, o)
	}
	return r.forgetUnserved(o, err)
}

// forgetUnserved asks for the RangeAPI again if the cluster no longer serves the resource.
func (r ranged) forgetUnserved(o any, err error) error {
	if _, is := betaOf(o); is && apierrors.IsNotFound(err) && unknownResource(err) {
		r.forget()
	}
	return err
}

// unknownResource is true of a NotFound that names no object.
func unknownResource(err error) bool {
	status, ok := err.(apierrors.APIStatus) // as the client returns it
	return ok && status.Status().Details != nil && status.Status().Details.Name == ""
}

func (r ranged) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return dispatch(ctx, r, o, func(b bitmap) error { return b.get(ctx, key.Name, o) },
		func(served client.Object) error { return r.WithWatch.Get(ctx, key, served, opts...) })
}

func (r ranged) List(ctx context.Context, all client.ObjectList, opts ...client.ListOption) error {
	return dispatch(ctx, r, all, func(b bitmap) error { return b.list(ctx, all, opts...) },
		func(served client.ObjectList) error { return r.WithWatch.List(ctx, served, opts...) })
}

func (r ranged) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return dispatch(ctx, r, o, func(b bitmap) error { return b.create(ctx, o, opts...) },
		func(served client.Object) error { return r.WithWatch.Create(ctx, served, opts...) })
}

func (r ranged) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	return dispatch(ctx, r, o, func(b bitmap) error { return b.update(ctx, o, opts...) },
		func(served client.Object) error { return r.WithWatch.Update(ctx, served, opts...) })
}

func (r ranged) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	return dispatch(ctx, r, o, func(b bitmap) error { return b.unchangeable("patched", o) },
		func(served client.Object) error {
			if served == o {
				return r.WithWatch.Patch(ctx, o, p, opts...)
			}
			data, err := p.Data(o)
			if err != nil {
				return err
			}
			return r.WithWatch.Patch(ctx, served, client.RawPatch(p.Type(), data), opts...)
		})
}

func (r ranged) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return dispatch(ctx, r, o, func(b bitmap) error { return b.remove(ctx, o, opts...) },
		func(served client.Object) error { return r.WithWatch.Delete(ctx, served, opts...) })
}

func (r ranged) DeleteAllOf(ctx context.Context, o client.Object, opts ...client.DeleteAllOfOption) error {
	return dispatch(ctx, r, o, func(b bitmap) error { return b.removeAll(ctx, o, opts...) },
		func(served client.Object) error { return r.WithWatch.DeleteAllOf(ctx, served, opts...) })
}

func (r ranged) Status() client.SubResourceWriter { return r.SubResource("status") }

func (r ranged) SubResource(name string) client.SubResourceClient {
	return rangedPart{SubResourceClient: r.WithWatch.SubResource(name), of: r}
}

// rangedPart is ranged for the status, which only stand-ins of controllers write.
type rangedPart struct {
	client.SubResourceClient
	of ranged
}

func (p rangedPart) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	return dispatch(ctx, p.of, o, func(b bitmap) error { return b.unchangeable("updated", o) },
		func(served client.Object) error { return p.SubResourceClient.Update(ctx, served, opts...) })
}

func (r ranged) Watch(ctx context.Context, all client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	served, err := r.servedForm(ctx, all)
	if err != nil {
		return nil, err
	}
	if served == nil {
		return r.bitmap().watchReserved(ctx, all, opts...)
	}
	w, err := r.WithWatch.Watch(ctx, served.(client.ObjectList), opts...)
	if served == any(all) || err != nil {
		return w, r.forgetUnserved(all, err)
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		switch o := e.Object.(type) {
		case *networkingv1beta1.ServiceCIDR:
			c := &networkingv1.ServiceCIDR{}
			fromBeta(o, c)
			e.Object = c
		case *networkingv1beta1.IPAddress:
			ip := &networkingv1.IPAddress{}
			fromBeta(o, ip)
			e.Object = ip
		case *metav1.Status: // an error, as it is
		}
		return e, true
	}), nil
}
