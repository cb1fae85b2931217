package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// ClusterState is where a cluster's migration stands. Phase is empty where it has not begun.
type ClusterState struct {
	Cluster string         `json:"cluster"`
	Wave    string         `json:"wave"`
	Phase   v1alpha1.Phase `json:"phase,omitempty"`
	// Final is true once the point of no return is passed.
	Final    bool   `json:"pointOfNoReturnPassed,omitempty"`
	Stage    string `json:"stage,omitempty"`
	Paused   bool   `json:"paused,omitempty"`
	Moved    int    `json:"moved"`
	Total    int    `json:"total"`
	Requests int64  `json:"requests"`
	Failed   int64  `json:"failed"`
	// Late answers are no losses. NotMeasured are further requests, of which nothing is known.
	Late        int64 `json:"late"`
	NotMeasured int64 `json:"notMeasured"`
	// Gates are what waits for people.
	Gates     []string `json:"gates,omitempty"`
	LastError string   `json:"lastError,omitempty"`
	// SettledAt is when the cluster became as asked for.
	SettledAt *time.Time `json:"settledAt,omitempty"`
	// Error says why the rest is not known, and ExitCode how status ended.
	Error    string `json:"error,omitempty"`
	ExitCode int    `json:"exitCode,omitempty"`
}

type status struct {
	Phase     v1alpha1.Phase        `json:"phase"`
	Final     bool                  `json:"pointOfNoReturnPassed"`
	LastError string                `json:"lastError"`
	Counts    v1alpha1.Counts       `json:"counts"`
	Stage     string                `json:"stage"`
	Paused    bool                  `json:"paused"`
	Proof     *v1alpha1.ProofStatus `json:"proof"`
	SettledAt *time.Time            `json:"settledAt"`
	Gates     []struct {
		Title string `json:"title"`
	} `json:"gates"`
}

// Read takes the output of replumb status NAME -o json --ignore-not-found; empty for no migration.
func (s *ClusterState) Read(printed []byte) error {
	if strings.TrimSpace(string(printed)) == "" {
		return nil
	}
	from := status{}
	if err := json.Unmarshal(printed, &from); err != nil {
		return fmt.Errorf("reading the status: %w", err)
	}
	s.Phase, s.Final, s.LastError, s.Stage, s.Paused = from.Phase, from.Final, from.LastError, from.Stage, from.Paused
	s.Moved, s.Total, s.SettledAt = from.Counts.Moved, from.Counts.Total, from.SettledAt
	if from.Proof != nil {
		s.Requests, s.Failed = from.Proof.Sent, from.Proof.Failed
		s.Late, s.NotMeasured = from.Proof.Late, from.Proof.NotMeasured
	}
	for _, g := range from.Gates {
		s.Gates = append(s.Gates, g.Title)
	}
	return nil
}

// Unknown is the State of a cluster that gave no answer.
func Unknown(t *ClusterTarget, of Outcome) ClusterState {
	return ClusterState{Cluster: t.Name, Wave: t.Wave, Error: of.Error, ExitCode: of.Code}
}

func (s *ClusterState) through() bool {
	return s.Phase == v1alpha1.PhaseMoved || s.Phase == v1alpha1.PhaseFinished || s.Final
}

// soakLeft is the rest of a soak since the last cluster settled. Without that time all of it is
// left.
func soakLeft(soak time.Duration, states []ClusterState, now time.Time) time.Duration {
	var longest time.Duration
	for _, s := range states {
		left := soak
		if s.SettledAt != nil {
			left = min(soak, soak-now.Sub(*s.SettledAt)) // clocks may differ
		}
		longest = max(longest, left)
	}
	return longest
}
