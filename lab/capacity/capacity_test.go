package capacity

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestShare(t *testing.T) {
	for _, tt := range []struct {
		machine  Machine
		requests float64
		want     float64
	}{
		{Machine{Starts: 1000}, 60, 1},
		{Machine{Starts: 1000}, 1000, 1},
		{Machine{Starts: 75}, 300, 0.25},
		{Machine{Starts: 75, Delay: time.Second}, 300, 0.125},
		{Machine{Starts: 75, Delay: calmDelay}, 60, 1},
	} {
		if got := tt.machine.Share(tt.requests); got != tt.want {
			t.Errorf("%v carries %v of %v requests a second, want %v", tt.machine, got, tt.requests, tt.want)
		}
	}
}

func TestMeasure(t *testing.T) {
	m, err := Measure(t.Context())
	if err != nil || m.Starts <= 0 || m.Delay < 0 || m.Processors < 1 {
		t.Errorf("%+v, %v", m, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Measure(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}
