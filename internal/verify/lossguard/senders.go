package lossguard

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// doubtEvery is the pause between two looks for the pods of unknown senders.
const doubtEvery = 500 * time.Millisecond

// instances are the pods of agents in this run, by UID. Policy may be lifted, so a report counts
// only from a pod of its node and network.
type instances map[string]Agent

func (in instances) take(pods []corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		if o := agentset.OriginOf(p); o != "" && p.Spec.NodeName != "" {
			in[string(p.UID)] = Agent{p.Spec.NodeName, o}
		}
	}
}

// admit returns a report without what no pod of its node has said, and who has said that instead.
func (in instances) admit(r *v1alpha1.NodeReport) (*v1alpha1.NodeReport, map[Agent]string) {
	var strangers map[Agent]string
	strange := func(o v1alpha1.ProbeOrigin, instance string) bool {
		a := Agent{r.Name, o}
		if in[instance] == a {
			return false
		}
		if strangers == nil {
			strangers = map[Agent]string{}
		}
		strangers[a] = instance
		return true
	}
	own := *r
	st := &own.Status
	st.Agents = slices.DeleteFunc(slices.Clone(st.Agents), func(a v1alpha1.AgentReport) bool { return strange(a.Origin, a.Instance) })
	st.Probes = slices.DeleteFunc(slices.Clone(st.Probes), func(p v1alpha1.ProbeReport) bool { return strange(p.Origin, p.Instance) })
	if st.Connects != nil && strange(v1alpha1.FromHost, st.Connects.Instance) {
		st.Connects = nil
	}
	if !slices.ContainsFunc(st.Agents, func(a v1alpha1.AgentReport) bool { return a.Origin == v1alpha1.FromHost }) {
		// These are the host agent's.
		st.Barriers, st.Clients, st.MoreClients, st.ForgottenClients, st.APIServers = nil, nil, 0, 0, nil
	}
	return &own, strangers
}

// identify looks for pods of agents whenever a report comes from an unknown one.
func (w *Watch) identify(ctx context.Context, seen *reports) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-seen.doubts:
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		if pods, err := w.pods(ctx); err == nil { // else the agents stay unknown, and the steps that wait for them say why
			seen.know(pods)
		} else {
			seen.doubt()
		}
		pause.Reset(doubtEvery)
	}
}

func (w *Watch) pods(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	err := w.Client.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace),
		client.MatchingLabels{v1alpha1.LabelMigration: w.Migration})
	if err != nil {
		return nil, fmt.Errorf("the pods of agents: %w", err)
	}
	return all.Items, nil
}

// know takes in pods of agents, and their earlier reports.
func (r *reports) know(pods []corev1.Pod) {
	r.mu.Lock()
	r.known.take(pods)
	var again []*v1alpha1.NodeReport
	for _, report := range r.strange {
		if _, strangers := r.known.admit(report); len(strangers) < len(r.tally.strangersOf(report.Name)) {
			again = append(again, report)
		}
	}
	r.mu.Unlock()
	for _, report := range again {
		_ = r.Update(report) // which fails for other objects only
	}
}

func (r *reports) doubt() {
	select {
	case r.doubts <- struct{}{}:
	default: // that is due
	}
}

// admit takes a report apart: what counts of it. The caller holds the lock.
func (r *reports) admit(report *v1alpha1.NodeReport) *v1alpha1.NodeReport {
	own, strangers := r.known.admit(report)
	r.tally.Doubt(report.Name, strangers)
	if len(strangers) == 0 {
		delete(r.strange, report.Name)
		return own
	}
	r.strange[report.Name] = report
	r.doubt()
	return own
}

// sincere is what counts of a report that was read elsewhere.
func (w *Watch) sincere(report *v1alpha1.NodeReport) *v1alpha1.NodeReport {
	seen := w.seen()
	seen.mu.Lock()
	defer seen.mu.Unlock()
	own, strangers := seen.known.admit(report)
	if len(strangers) > 0 {
		seen.doubt()
	}
	return own
}
