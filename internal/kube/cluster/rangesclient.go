package cluster

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ranged has ServiceCIDRs and IPAddresses of V1 be read from and written to a cluster that has them
// in V1Beta1, which are the same but for the name, or has none at all: see bitmap.
type ranged struct {
	client.WithWatch
	*rangesFinder
}

func newClient(c client.WithWatch, f *rangesFinder) client.WithWatch { return ranged{c, f} }

// without reports whether an object, or a list, is of those that the cluster does not have.
func (r ranged) without(ctx context.Context, o any) (bool, error) {
	if _, is := betaOf(o); !is {
		return false, nil
	}
	api, err := r.find(ctx)
	return api == Bitmap, err
}

func (r ranged) bitmap() bitmap { return bitmap{WithWatch: r.WithWatch, ask: askRanges} }

// as is what stands for an object, or a list, in the cluster: mostly itself.
func (r ranged) as(ctx context.Context, o any) (any, error) {
	beta, is := betaOf(o)
	if !is {
		return o, nil
	}
	switch api, err := r.find(ctx); {
	case err != nil:
		return nil, err
	case api == RangesV1:
		return o, nil
	}
	return beta, nil
}

// with does something to what stands for an object in the cluster, and gives the object what became
// of it.
func (r ranged) with(ctx context.Context, o client.Object, do func(client.Object) error) error {
	as, err := r.as(ctx, o)
	if err != nil {
		return err
	}
	err = do(as.(client.Object))
	if as != any(o) && err == nil {
		fromBeta(as, o)
	}
	return r.gone(o, err)
}

// gone has the finder ask again, if the cluster does not know the resource any more.
func (r ranged) gone(o any, err error) error {
	if _, is := betaOf(o); is && apierrors.IsNotFound(err) && unknownResource(err) {
		r.forget()
	}
	return err
}

// unknownResource tells a resource that is not served from an object that is not there, which is
// named.
func unknownResource(err error) bool {
	status, ok := err.(apierrors.APIStatus) // as the client returns it
	return ok && status.Status().Details != nil && status.Status().Details.Name == ""
}

// orElse is an error, or what is done without.
func orElse(err error, do func() error) error {
	if err != nil {
		return err
	}
	return do()
}

func (r ranged) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if none, err := r.without(ctx, o); none || err != nil {
		return orElse(err, func() error { return r.bitmap().get(ctx, key.Name, o) })
	}
	return r.with(ctx, o, func(as client.Object) error { return r.WithWatch.Get(ctx, key, as, opts...) })
}

func (r ranged) List(ctx context.Context, all client.ObjectList, opts ...client.ListOption) error {
	if none, err := r.without(ctx, all); none || err != nil {
		return orElse(err, func() error { return r.bitmap().list(ctx, all, opts...) })
	}
	as, err := r.as(ctx, all)
	if err != nil {
		return err
	}
	err = r.WithWatch.List(ctx, as.(client.ObjectList), opts...)
	if as != any(all) && err == nil {
		fromBeta(as, all)
	}
	return r.gone(all, err)
}

func (r ranged) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if none, err := r.without(ctx, o); none || err != nil {
		return orElse(err, func() error { return r.bitmap().create(ctx, o, opts...) })
	}
	return r.with(ctx, o, func(as client.Object) error { return r.WithWatch.Create(ctx, as, opts...) })
}

func (r ranged) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if none, err := r.without(ctx, o); none || err != nil {
		return orElse(err, func() error { return r.bitmap().update(ctx, o, opts...) })
	}
	return r.with(ctx, o, func(as client.Object) error { return r.WithWatch.Update(ctx, as, opts...) })
}

func (r ranged) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if none, err := r.without(ctx, o); none || err != nil {
		return orElse(err, func() error { return r.bitmap().unchangeable("patched", o) })
	}
	return r.with(ctx, o, func(as client.Object) error {
		if as == o {
			return r.WithWatch.Patch(ctx, o, p, opts...)
		}
		data, err := p.Data(o)
		if err != nil {
			return err
		}
		return r.WithWatch.Patch(ctx, as, client.RawPatch(p.Type(), data), opts...)
	})
}

func (r ranged) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if none, err := r.without(ctx, o); none || err != nil {
		return orElse(err, func() error { return r.bitmap().remove(ctx, o, opts...) })
	}
	return r.with(ctx, o, func(as client.Object) error { return r.WithWatch.Delete(ctx, as, opts...) })
}

func (r ranged) DeleteAllOf(ctx context.Context, o client.Object, opts ...client.DeleteAllOfOption) error {
	if none, err := r.without(ctx, o); none || err != nil {
		return orElse(err, func() error { return r.bitmap().removeAll(ctx, o, opts...) })
	}
	return r.with(ctx, o, func(as client.Object) error { return r.WithWatch.DeleteAllOf(ctx, as, opts...) })
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
	if none, err := p.of.without(ctx, o); none || err != nil {
		return orElse(err, func() error { return p.of.bitmap().unchangeable("updated", o) })
	}
	return p.of.with(ctx, o, func(as client.Object) error { return p.SubResourceClient.Update(ctx, as, opts...) })
}

func (r ranged) Watch(ctx context.Context, all client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	none, err := r.without(ctx, all)
	if err != nil {
		return nil, err
	}
	if none {
		return r.bitmap().follow(ctx, all, opts...)
	}
	as, err := r.as(ctx, all)
	if err != nil {
		return nil, err
	}
	w, err := r.WithWatch.Watch(ctx, as.(client.ObjectList), opts...)
	if as == any(all) || err != nil {
		return w, r.gone(all, err)
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
