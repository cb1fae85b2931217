package overlapset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/network/overlap"
)

// behind is for how long a replica may be out of step: longer than the loss of the other takes.
const behind = 5 * time.Second

// Down is a replica that does not do its work.
type Down struct {
	// Pod that it is; empty for one that has none.
	Pod string
	// Cause in one word, and Reason for people.
	Cause  workload.Cause
	Reason string
}

// DownError says that what keeps bridges in step does not run as it should.
type DownError struct {
	All []Down
}

func (e *DownError) Error() string {
	var texts []string
	for _, d := range e.All {
		texts = append(texts, d.Reason)
	}
	return strings.Join(texts, "; ")
}

func (*DownError) ExitCode() int { return fault.ExitError }

func (e *DownError) Advice() string {
	const in = "kubectl logs -n " + v1alpha1.SystemNamespace + " POD"
	return workload.Advice([]workload.Hint{
		{
			Cause: workload.NoImage,
			Text: "push the image to where nodes pull from, or load it into them, and name it in spec.image, " +
				"and pull secrets for it in spec.imagePullSecrets",
		},
		{
			Cause: workload.NoPod,
			Text: "kubectl describe replicaset -n " + v1alpha1.SystemNamespace +
				" shows who refuses pods: let them in, by label or quota",
		},
		{
			Cause: workload.Unscheduled,
			Text: "make room on two nodes: a replica asks for 20m of CPU time and 48Mi, and tolerates the taints of " +
				"control planes",
		},
		{Cause: workload.Ends, Text: in + " --previous says more"},
		{Cause: workload.Mute, Text: in + " says whether it reaches the API server"},
	}, "remove the cause", func(c workload.Cause) bool {
		return slices.ContainsFunc(e.All, func(d Down) bool { return d.Cause == c })
	}) + "; then run the same command again, or " + Without
}

type view struct {
	// template is that of the Deployment; empty if there is none.
	template string
	pods     []corev1.Pod
	leases   []coordinationv1.Lease
	// news is what was last heard of pods and of what makes them, if one is missing or does not
	// start.
	news map[string]string
}

func (s *Set) look(ctx context.Context) (*view, error) {
	d, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	v := &view{}
	if d != nil && d.DeletionTimestamp.IsZero() {
		v.template = d.Spec.Template.Annotations[workload.TemplateAnnotation]
	}
	if v.pods, err = s.pods(ctx); err != nil {
		return nil, err
	}
	if v.leases, err = s.leases(ctx); err != nil {
		return nil, err
	}
	running := 0
	for _, p := range v.current() {
		if cause, _ := workload.NotRunning(p); cause == "" {
			running++
		}
	}
	if running < Replicas {
		v.news, err = workload.News(ctx, s.Cluster, workload.Named(Name+"-"))
	}
	return v, err
}

// current are the pods of the template that the Deployment has now, and that are to stay.
func (v *view) current() []*corev1.Pod {
	var all []*corev1.Pod
	for i := range v.pods {
		p := &v.pods[i]
		if p.DeletionTimestamp.IsZero() && p.Annotations[workload.TemplateAnnotation] == v.template {
			all = append(all, p)
		}
	}
	return all
}

// heartbeat of a pod; ok is false if it has none.
func (v *view) heartbeat(p *corev1.Pod) (h overlap.Heartbeat, ok bool) {
	for i := range v.leases {
		if h, ok = overlap.Heard(&v.leases[i]); ok && h.Name == p.Name && h.UID == p.UID {
			return h, true
		}
	}
	return overlap.Heartbeat{}, false
}

// lead is who leads, and when that was said last.
func (v *view) lead() (who string, at time.Time) {
	for i := range v.leases {
		l := &v.leases[i]
		if l.Name == overlap.LeaseName && l.Spec.HolderIdentity != nil && l.Spec.RenewTime != nil {
			return *l.Spec.HolderIdentity, l.Spec.RenewTime.Time
		}
	}
	return "", time.Time{}
}

// down are the replicas that do not do their work. lately reports whether something that was said
// at a time, by a name, is news.
func (v *view) down(lately func(name string, at time.Time) bool) []Down {
	if v.template == "" {
		return []Down{{Cause: workload.NoPod, Reason: fmt.Sprintf("deployment %s/%s does not exist", v1alpha1.SystemNamespace, Name)}}
	}
	var all []Down
	current := v.current()
	for _, p := range current {
		if cause, reason := v.why(p, lately); cause != "" {
			all = append(all, Down{Pod: p.Name, Cause: cause, Reason: reason})
		}
	}
	if missing := Replicas - len(current); missing > 0 {
		reason := fmt.Sprintf("deployment %s/%s has %d of %d pods", v1alpha1.SystemNamespace, Name, len(current), Replicas)
		all = append(all, Down{Cause: workload.NoPod, Reason: workload.And(reason, v.refused())})
	}
	if who, at := v.lead(); len(all) == 0 && !lately("lease "+who, at) {
		all = append(
			all,
			Down{Cause: workload.Mute, Reason: fmt.Sprintf("no replica of deployment %s/%s leads", v1alpha1.SystemNamespace, Name)},
		)
	}
	return all
}

// refused is what was last heard of why a pod was not made.
func (v *view) refused() string {
	for name, text := range v.news {
		pod := slices.ContainsFunc(v.pods, func(p corev1.Pod) bool { return p.Name == name })
		if !pod && strings.HasPrefix(name, Name+"-") && strings.HasPrefix(text, "Error creating") {
			return text
		}
	}
	return ""
}

// why says why a replica does not do its work; nothing if it does.
func (v *view) why(p *corev1.Pod, lately func(name string, at time.Time) bool) (workload.Cause, string) {
	if cause, reason := workload.Waiting(p, v.news[p.Name]); cause != "" {
		return cause, reason
	}
	h, heard := v.heartbeat(p)
	switch {
	case !heard:
		return workload.Mute, fmt.Sprintf("pod %s runs, but has not reported", p.Name)
	case h.Problem != "":
		return workload.Trouble, fmt.Sprintf("pod %s reports: %s", p.Name, h.Problem)
	case !lately(p.Name, h.At):
		return workload.Mute, fmt.Sprintf("pod %s runs, but has not reported since it was first looked for", p.Name)
	case h.InStep.IsZero() || h.At.Sub(h.InStep) > behind:
		return workload.Trouble, fmt.Sprintf("pod %s reports that bridges are out of step", p.Name)
	}
	return "", ""
}

// aliveStep waits until all replicas report that everything is in step.
type aliveStep struct {
	set *Set
	// lenient steps are done after a while, whatever is missing, and say so.
	lenient bool

	// first are the times of the first look: later ones are news, without a comparison of clocks.
	first map[string]time.Time
	until time.Time
	note  string
}

// patience is how long the way back waits at most.
const patience = 30 * time.Second

func (*aliveStep) ID() string                { return "overlap/alive" }
func (*aliveStep) Title() string             { return "Verify that the overlap follows every Service" }
func (*aliveStep) Waits()                    {}
func (s *aliveStep) Deadline() time.Duration { return s.set.wait() + time.Minute }
func (s *aliveStep) Note() string            { return s.note }

func (s *aliveStep) State(ctx context.Context) (engine.State, error) {
	v, err := s.set.look(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if len(v.down(s.set.fresh)) > 0 {
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *Set) fresh(_ string, at time.Time) bool { return s.now().Sub(at).Abs() < overlap.Silence }

func (*aliveStep) Do(context.Context) error { return nil }

func (s *aliveStep) Verify(ctx context.Context) error {
	v, err := s.set.look(ctx)
	if err != nil {
		return err
	}
	if s.first == nil {
		s.first, s.until = map[string]time.Time{}, s.set.now().Add(min(patience, s.set.wait()))
	}
	down := v.down(s.since)
	switch late := s.set.now().After(s.until); {
	case len(down) == 0:
		return nil
	case s.lenient && late:
		s.note = "rolling back without it: " + (&DownError{All: down}).Error()
		return nil
	}
	return engine.NotYet("%w", &DownError{All: down})
}

// since reports whether something was said after it was first looked.
func (s *aliveStep) since(name string, at time.Time) bool {
	first, known := s.first[name]
	if !known {
		s.first[name] = at
		return false
	}
	return !at.Equal(first)
}
