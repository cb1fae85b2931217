package probe

import (
	"errors"
	"testing"
)

func TestSummaryErr(t *testing.T) {
	config := Config{Targets: []Target{{Name: "a"}, {Name: "b"}}}
	tests := []struct {
		name    string
		windows []Interval
		budget  int
		loss    bool
		fails   bool
	}{
		{"all answered", []Interval{{Target: "a", Sent: 2, OK: 2}, {Target: "b", Sent: 1, OK: 1}}, 0, false, false},
		{"one lost", []Interval{{Target: "a", Sent: 2, OK: 1, Failed: 1}, {Target: "b", Sent: 1, OK: 1}}, 0, true, true},
		{"within the budget", []Interval{{Target: "a", Sent: 2, OK: 1, Failed: 1}, {Target: "b", Sent: 1, OK: 1}}, 1, false, false},
		{"beyond it together", []Interval{{Target: "a", Sent: 1, Failed: 1}, {Target: "b", Sent: 1, Failed: 1}}, 1, true, true},
		{"one was never asked", []Interval{{Target: "a", Sent: 2, OK: 2}, {Target: "b"}}, 0, false, true},
		{"nothing was asked", nil, 0, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ledger := NewLedger(config)
			for _, w := range tt.windows {
				if err := ledger.Add(w); err != nil {
					t.Fatal(err)
				}
			}
			err := ledger.Summary(tt.budget).Err()
			var loss *LossError
			if errors.As(err, &loss) != tt.loss || (err != nil) != tt.fails {
				t.Errorf("error = %v", err)
			}
		})
	}
	if err := NewLedger(config).Add(Interval{Target: "c"}); err == nil {
		t.Error("the window of a target that is not probed was added")
	}
}
