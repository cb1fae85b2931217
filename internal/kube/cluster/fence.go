package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// fenced asks before each write, as the last thing, whether its run may still write: a process that
// was stopped may wake up after another has taken over.
type fenced struct{ client.WithWatch }

func (f fenced) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.WithWatch.Create(ctx, o, opts...)
}

func (f fenced) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.WithWatch.Update(ctx, o, opts...)
}

func (f fenced) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.WithWatch.Patch(ctx, o, p, opts...)
}

func (f fenced) Apply(ctx context.Context, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.WithWatch.Apply(ctx, o, opts...)
}

func (f fenced) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.WithWatch.Delete(ctx, o, opts...)
}

func (f fenced) DeleteAllOf(ctx context.Context, o client.Object, opts ...client.DeleteAllOfOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.WithWatch.DeleteAllOf(ctx, o, opts...)
}

func (f fenced) Status() client.SubResourceWriter { return f.SubResource("status") }

func (f fenced) SubResource(name string) client.SubResourceClient {
	return fencedPart{f.WithWatch.SubResource(name)}
}

// fencedPart is fenced for subresources, such as status and eviction.
type fencedPart struct{ client.SubResourceClient }

func (f fencedPart) Create(ctx context.Context, o, part client.Object, opts ...client.SubResourceCreateOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.SubResourceClient.Create(ctx, o, part, opts...)
}

func (f fencedPart) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.SubResourceClient.Update(ctx, o, opts...)
}

func (f fencedPart) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.SubResourceClient.Patch(ctx, o, p, opts...)
}

func (f fencedPart) Apply(ctx context.Context, o runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	if err := engine.MayWrite(ctx, false); err != nil {
		return err
	}
	return f.SubResourceClient.Apply(ctx, o, opts...)
}
