package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// batch is how long news wait for more.
	batch = 250 * time.Millisecond
	// writeLimit bounds a write, and the growing pause after failures.
	writeLimit = 5 * time.Second
	// firstRetry and lastRetry are the pauses after reports that could not be written.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 2 * time.Second
	// longestProblem is how much of what is wrong is reported.
	longestProblem = 1024
)

// reporter writes one agent's part of a NodeReport.
type reporter struct {
	client          client.Client
	node, migration string
	origin          v1alpha1.ProbeOrigin
	// draw makes the report as it is now. Keep is called when it is written.
	draw func() (status *v1alpha1.NodeReportStatus, keep func(), err error)
	// found, if set, hears what the report said before this agent wrote to it.
	found func(*v1alpha1.NodeReportStatus)
	// every is the pause between reports when there are no news.
	every func() time.Duration
	// log hears why a report could not be written. May be nil.
	log func(error)

	news chan struct{}

	mu      sync.Mutex
	created bool
}

func (r *reporter) poke() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// follow fails only if a report cannot be made at all.
func (r *reporter) follow(ctx context.Context) error {
	pause, due := time.Duration(0), time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		case <-r.news:
			due.Reset(batch)
			select {
			case <-ctx.Done():
				return nil
			case <-due.C:
			}
		}
		// News during a report make another one.
		select {
		case <-r.news:
		default:
		}
		err := r.write(ctx)
		var broken *brokenError
		switch {
		case errors.As(err, &broken):
			return err
		case err != nil:
			// The next one tells what this one would have.
			if r.log != nil && ctx.Err() == nil {
				r.log(err)
			}
			pause = min(max(2*pause, firstRetry), lastRetry)
			due.Reset(pause)
		default:
			pause = 0
			due.Reset(r.every())
		}
	}
}

type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

func (r *reporter) write(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := r.create(ctx); err != nil {
		return err
	}
	status, keep, err := r.draw()
	if err != nil {
		return &brokenError{err}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return &brokenError{fmt.Errorf("nodereport %s: %w", r.node, err)}
	}
	object := r.object()
	object.Object["status"] = content
	err = r.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), r.owner(), client.ForceOwnership)
	if apierrors.IsNotFound(err) { // it was removed
		r.created = false
	}
	if err != nil {
		return fmt.Errorf("nodereport %s: %w", r.node, err)
	}
	keep()
	return nil
}

// create makes the NodeReport or attaches it to the migration; both agents of a node do so.
func (r *reporter) create(ctx context.Context) error {
	if r.created {
		return nil
	}
	object := r.object()
	object.SetLabels(map[string]string{v1alpha1.LabelMigration: r.migration})
	err := r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), r.owner(), client.ForceOwnership)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("nodereport %s: %w", r.node, err)
	}
	r.created = err == nil
	return r.recall(object)
}

func (r *reporter) recall(object *unstructured.Unstructured) error {
	content, there, err := unstructured.NestedMap(object.Object, "status")
	if r.found == nil || !there {
		return err
	}
	before := &v1alpha1.NodeReportStatus{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, before); err != nil {
		return fmt.Errorf("nodereport %s: what it said before: %w", r.node, err)
	}
	r.found(before)
	r.found = nil
	return nil
}

func (r *reporter) object() *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeReport"))
	object.SetName(r.node)
	return object
}

// owner differs by agent: each owns what it writes.
func (r *reporter) owner() client.FieldOwner {
	return client.FieldOwner("replumb-agent-" + strings.ToLower(string(r.origin)))
}

type aliveness struct {
	report v1alpha1.AgentReport
}

// next is the heartbeat, with what keeps the agent from seeing.
func (a *aliveness) next(problems []error) v1alpha1.AgentReport {
	a.report.Sequence++
	a.report.ReportedAt = metav1.NowMicro()
	a.report.Problem = ""
	var texts []string
	for _, p := range problems {
		if p != nil {
			texts = append(texts, p.Error())
		}
	}
	if text := strings.Join(texts, "; "); text != "" {
		a.report.Problem = strings.ToValidUTF8(text[:min(len(text), longestProblem)], "")
	}
	return a.report
}
