package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// stateOf is what a step finds whose proof tells whether it is done.
func stateOf(err error) (engine.State, error) {
	switch {
	case err == nil:
		return engine.Done, nil
	case engine.Retryable(err):
		return engine.Pending, nil
	}
	return engine.Unknown, err
}

// rememberStep writes down what cannot be seen later: which clusters these are, and what names led to.
type rememberStep struct {
	tools  Tools
	survey *Survey
}

func (*rememberStep) ID() string    { return "secure/names" }
func (*rememberStep) Title() string { return "Write down both clusters, and where names lead" }

func (s *rememberStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *rememberStep) Do(ctx context.Context) error {
	return migration.UpdateStatus(ctx, s.tools.Source, s.survey.Spec.Name, func(st *v1alpha1.MigrationStatus) {
		if st.Mirror == nil {
			st.Mirror = &v1alpha1.MirrorStatus{Serving: v1alpha1.ServingSource}
		}
		m := st.Mirror
		m.SourceUID, m.TargetUID = s.survey.Source.UID, s.survey.Target.UID
		if m.Serving == v1alpha1.ServingSource { // later they are what they were
			m.Names = s.survey.Names
		}
	})
}

func (s *rememberStep) Verify(ctx context.Context) error {
	m, err := migration.Get(ctx, s.tools.Source, s.survey.Spec.Name)
	if err != nil {
		return err
	}
	if m == nil || m.Status.Mirror == nil || m.Status.Mirror.TargetUID != s.survey.Target.UID ||
		m.Status.Mirror.Serving == v1alpha1.ServingSource && !equality.Semantic.DeepEqual(m.Status.Mirror.Names, s.survey.Names) {
		return engine.NotYet("what names lead to is not written down")
	}
	return nil
}

// servingStep writes down who serves.
type servingStep struct {
	client    client.Client
	migration string
	name      string
	side      v1alpha1.ServingSide
}

func (s *servingStep) ID() string { return s.name }
func (s *servingStep) Title() string {
	if s.side == v1alpha1.ServingBoth {
		return "Write down that both clusters serve from here on"
	}
	return fmt.Sprintf("Write down that the %s serves", strings.ToLower(string(s.side)))
}

func (s *servingStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *servingStep) Do(ctx context.Context) error {
	return migration.UpdateStatus(ctx, s.client, s.migration, func(st *v1alpha1.MigrationStatus) {
		if st.Mirror == nil {
			st.Mirror = &v1alpha1.MirrorStatus{}
		}
		st.Mirror.Serving = s.side
	})
}

func (s *servingStep) Verify(ctx context.Context) error {
	m, err := migration.Get(ctx, s.client, s.migration)
	if err != nil {
		return err
	}
	if m == nil || m.Status.Mirror == nil || m.Status.Mirror.Serving != s.side {
		return engine.NotYet("it is not written down who serves")
	}
	return nil
}

// readiness is how long workloads may take to become ready: images are pulled.
const readiness = 15 * time.Minute

// readyStep waits until every workload of a cluster is ready. It tells which are not, and why.
type readyStep struct {
	name  string
	about string
	ready func(context.Context) ([]string, error)
}

var (
	_ engine.Waiter = (*readyStep)(nil)
	_ engine.Timed  = (*readyStep)(nil)
)

func (s *readyStep) ID() string { return s.name }
func (s *readyStep) Title() string {
	return "Wait until every workload of the " + s.about + " is ready"
}
func (*readyStep) Waits()                                            {}
func (*readyStep) Deadline() time.Duration                           { return readiness }
func (s *readyStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }
func (*readyStep) Do(context.Context) error                          { return nil }

func (s *readyStep) Verify(ctx context.Context) error {
	unready, err := s.ready(ctx)
	if err != nil || len(unready) == 0 {
		return err
	}
	return engine.NotYet("%d not ready in the %s: %s", len(unready), s.about, few(unready))
}

// few are the first of many, for one line.
func few(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(all[:most], "; "), len(all)-most)
}

// VolumeRequest is what the action of spec.mirror.copy.volumeAction is told.
type VolumeRequest struct {
	Migration string `json:"migration"`
	// Claims of the source, as namespace/name, that have copies in the target by now.
	Claims []string `json:"claims"`
}

// volumeStep has somebody else fill the volumes of copied claims. It cannot know whether an earlier run did.
type volumeStep struct {
	spec   Spec
	claims []string
	action v1alpha1.Action
}

var _ engine.Timed = (*volumeStep)(nil)

func (*volumeStep) ID() string    { return "copy/volumes" }
func (*volumeStep) Title() string { return "Have the volumes of the target filled" }

func (s *volumeStep) Deadline() time.Duration                   { return s.action.Timeout.Duration + time.Minute }
func (*volumeStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (*volumeStep) Verify(context.Context) error                { return nil }
func (s *volumeStep) Do(ctx context.Context) error {
	claims := slices.Clone(s.claims)
	slices.Sort(claims)
	return callout.Call(ctx, s.action, VolumeRequest{Migration: s.spec.Name, Claims: claims}, nil)
}
