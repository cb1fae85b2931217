// Package endurance holds tests that take too long for every run.
package endurance

import (
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
)

func TestMain(m *testing.M) {
	lab.RunMachineIfAsked()
	os.Exit(m.Run())
}

// TestTwentyTimes brings a lab up and down again and again.
func TestTwentyTimes(t *testing.T) {
	before := labtest.HostState(t)
	topology := lab.Default()
	topology.Name = "again"
	for i := range 20 {
		start := time.Now()
		l, err := lab.Up(t.Context(), topology, lab.Options{})
		if err != nil {
			t.Fatalf("time %d: %v", i+1, err)
		}
		up := time.Since(start)
		if nodes, err := l.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(nodes.Items) != 2 {
			t.Errorf("time %d: %d nodes, %v; want 2", i+1, len(nodes.Items), err)
		}
		start = time.Now()
		if _, err := lab.Down(t.Context(), topology.Name); err != nil {
			t.Fatalf("time %d: %v", i+1, err)
		}
		t.Logf("time %d: up in %s, down in %s", i+1, up.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		labtest.RequireNothingLeft(t, topology.Name)
		labtest.RequireUnchanged(t, before)
	}
}
