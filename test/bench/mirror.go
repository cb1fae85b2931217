package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/testing/apitest"
)

type mirror struct {
	secrets, mixed, parallel int
}

// ofMirror measures how fast replumb copies many Secrets, and many objects of other kinds, from one cluster to another,
// beside a bare client that writes the same objects with the same parallelism: by server-side apply, and by plain creation. Both
// clusters are an API server and its etcd alone; each writer gets a new one.
func ofMirror(flags *flag.FlagSet) func(context.Context) error {
	o := mirror{}
	flags.IntVar(&o.secrets, "secrets", 31000, "how many Secrets")
	flags.IntVar(&o.mixed, "mixed", 10000, "how many objects of other kinds")
	flags.IntVar(&o.parallel, "parallel", copyrules.DefaultParallel, "how many objects are written at once")
	return func(ctx context.Context) error {
		if o.secrets < 1 || o.mixed < 1 || o.parallel < 1 {
			return errors.New("every number has to be positive")
		}
		source, err := apitest.Run("10.96.0.0/16", apitest.WithoutEndpoints())
		if err != nil {
			return err
		}
		return errors.Join(o.measure(ctx, source), source.Stop())
	}
}

// measure has the bare client apply before the copy and after it, and takes the mean: a machine that gets busier, or less busy,
// meanwhile then makes no difference.
func (o mirror) measure(ctx context.Context, source *apitest.Server) error {
	sets := []set{{o.secrets, secret}, {o.mixed, mixed}}
	fmt.Printf("%d Secrets and %d objects of other kinds in %d namespaces, %d at once; load average %s\n",
		o.secrets, o.mixed, namespaces, o.parallel, load())
	for _, set := range sets {
		if err := o.create(ctx, source, set); err != nil {
			return fmt.Errorf("filling the source: %w", err)
		}
	}
	before, err := o.bare(ctx, "apply", sets, o.apply)
	if err != nil {
		return err
	}
	copied, err := o.copies(ctx, source)
	if err != nil {
		return err
	}
	after, err := o.bare(ctx, "apply", sets, o.apply)
	if err != nil {
		return err
	}
	created, err := o.bare(ctx, "create", sets, o.create)
	if err != nil {
		return err
	}
	for i, what := range []string{"Secrets", "mixed"} {
		rate := func(took time.Duration) float64 { return float64(sets[i].size) / took.Seconds() }
		mean := rate((before[i] + after[i]) / 2)
		fmt.Printf(
			"  RESULT %s: copy %.0f/s; bare apply %.0f/s before and %.0f/s after, ratio to the mean %.2f; bare create %.0f/s, ratio %.2f\n",
			what,
			rate(copied[i]),
			rate(before[i]),
			rate(after[i]),
			rate(copied[i])/mean,
			rate(created[i]),
			rate(copied[i])/rate(created[i]),
		)
	}
	fmt.Printf("  load average %s\n", load())
	return nil
}

// copies measures replumb: Secrets, all others, a second run and a comparison.
func (o mirror) copies(ctx context.Context, source *apitest.Server) (took [2]time.Duration, err error) {
	target, err := apitest.Run("10.96.0.0/16", apitest.WithoutEndpoints())
	if err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, target.Stop()) }()
	for i, kinds := range []v1alpha1.NameFilter{{Include: []string{"namespaces", "secrets"}}, {Exclude: []string{"secrets"}}} {
		c, err := o.copier(source, target, kinds)
		if err != nil {
			return took, err
		}
		if took[i], err = timed(func() error { return o.check(c.Run(ctx, copyrules.All)) }); err != nil {
			return took, err
		}
	}
	fmt.Printf("  RESULT resident memory at its highest %.0f MB\n", memory(os.Getpid(), "VmHWM"))
	c, err := o.copier(source, target, v1alpha1.NameFilter{})
	if err != nil {
		return took, err
	}
	again, err := timed(func() error {
		r, err := c.Run(ctx, copyrules.All)
		if err == nil && r.Written > 0 {
			return fmt.Errorf("the second run wrote %d objects", r.Written)
		}
		return o.check(r, err)
	})
	if err != nil {
		return took, err
	}
	compared, err := timed(func() error {
		p, err := c.Compare(ctx)
		if err == nil && !p.Equal() {
			return fmt.Errorf("%d differences, the first: %v", len(p.Differences), p.Differences[0])
		}
		return err
	})
	fmt.Printf("  RESULT second run, which writes nothing %.1fs; comparison, without a difference %.1fs; memory %.0f MB\n",
		again.Seconds(), compared.Seconds(), memory(os.Getpid(), "VmHWM"))
	return took, err
}

func (o mirror) copier(source, target *apitest.Server, kinds v1alpha1.NameFilter) (*objectsync.Copier, error) {
	from, err := objectsync.Connect(source.Cluster)
	if err != nil {
		return nil, err
	}
	to, err := objectsync.Connect(target.Cluster)
	if err != nil {
		return nil, err
	}
	rules, err := copyrules.New(copyrules.Options{
		Migration: "bench", Copy: v1alpha1.CopySpec{Kinds: kinds, Parallel: int32(min(o.parallel, 128))},
	})
	if err != nil {
		return nil, err
	}
	return &objectsync.Copier{Source: from, Target: to, Rules: rules}, nil
}

func (o mirror) check(r objectsync.Result, err error) error {
	if err == nil && len(r.Errors) > 0 {
		return fmt.Errorf("%d objects failed, the first: %w", len(r.Errors), r.Errors[0])
	}
	return err
}

// bare measures a client that does nothing but write, in a cluster of its own.
func (o mirror) bare(
	ctx context.Context, how string, sets []set, write func(context.Context, *apitest.Server, set) error,
) (took [2]time.Duration, err error) {
	target, err := apitest.Run("10.96.0.0/16", apitest.WithoutEndpoints())
	if err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, target.Stop()) }()
	for i, set := range sets {
		if took[i], err = timed(func() error { return write(ctx, target, set) }); err != nil {
			return took, fmt.Errorf("bare %s: %w", how, err)
		}
	}
	return took, nil
}

func timed(do func() error) (time.Duration, error) {
	start := time.Now()
	err := do()
	return time.Since(start), err
}
