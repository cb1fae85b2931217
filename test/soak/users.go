package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/test/soak/model"
)

const (
	// writer is the field manager of users.
	writer = "soak"
	// writeWithin is for how long a write is tried again that no API server has answered, or that one could not serve.
	writeWithin = 2 * time.Minute
	writeEvery  = 500 * time.Millisecond
	// remembered are the operations that a failing run prints.
	remembered = 40
)

// users are at work in the cluster. Their lock is held during an operation; who holds it instead has them wait.
type users struct {
	sync.Mutex
	client    client.Client
	generator *model.Generator
	stages    *stages

	counts        sync.Mutex
	done, refused int
	last          []string
}

// work has users do one operation after the other, with a pause before each, until the context ends.
func (u *users) work(ctx context.Context, pause func() time.Duration) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause()):
		}
		if err := u.one(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// one makes the next operation, and has the model know what became of it.
func (u *users) one(ctx context.Context) error {
	u.Lock()
	defer u.Unlock()
	op := u.generator.Next()
	began := time.Now()
	for i, w := range op.Writes {
		err := u.write(ctx, w)
		if i == 0 && frozen(err) && u.mayBeRefused(op, began) {
			u.generator.Refused(op)
			u.remember(op, true)
			return nil
		}
		if err != nil {
			u.remember(op, false)
			return fmt.Errorf("operation %s, while %s: %w", op, u.stages.now(), err)
		}
	}
	u.generator.Done(op)
	u.remember(op, false)
	return nil
}

func (u *users) mayBeRefused(op model.Op, began time.Time) bool {
	return slices.ContainsFunc(u.stages.between(began, time.Now()), op.MayBeRefused)
}

func (u *users) remember(op model.Op, refused bool) {
	u.counts.Lock()
	defer u.counts.Unlock()
	text := clock(time.Now()) + " " + op.String()
	if u.done++; refused {
		u.done--
		u.refused++
		text += " (refused by the freeze)"
	}
	u.last = append(u.last, text)
	u.last = u.last[max(0, len(u.last)-remembered):]
}

// counted are the operations made and refused so far, and the last of them.
func (u *users) counted() (done, refused int, last []string) {
	u.counts.Lock()
	defer u.counts.Unlock()
	return u.done, u.refused, slices.Clone(u.last)
}

// write makes a request until an API server has answered it. One that was not answered may have been served all the same.
func (u *users) write(ctx context.Context, w model.Write) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	unsure := false
	for {
		err := u.request(ctx, w)
		switch {
		case err == nil, unsure && served(w.Verb, err):
			return nil
		case !temporary(err):
			return err
		}
		unsure = true
		select {
		case <-ctx.Done():
			return err
		case <-time.After(writeEvery):
		}
	}
}

func (u *users) request(ctx context.Context, w model.Write) error {
	o := w.Object.DeepCopyObject().(client.Object)
	switch w.Verb {
	case model.Create:
		return u.client.Create(ctx, o, client.FieldOwner(writer))
	case model.Delete:
		return u.client.Delete(ctx, o)
	default:
		return u.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, w.Patch), client.FieldOwner(writer))
	}
}

// served reports whether an answer says that the same request was served before.
func served(verb model.Verb, err error) bool {
	return (verb == model.Create && apierrors.IsAlreadyExists(err)) || (verb == model.Delete && apierrors.IsNotFound(err))
}

// temporary reports whether a request may be sent again: no answer came, or one that says so.
func temporary(err error) bool {
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		return true
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsConflict(err)
}

// frozen reports whether an answer is the freeze's refusal.
func frozen(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+freeze.Name+"'")
}
