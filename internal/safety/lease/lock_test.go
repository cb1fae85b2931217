package lease

import (
	"testing"
	"time"
)

func TestDeadElsewhereIsNotKnownToBeDead(t *testing.T) {
	self := Self("shop", "replumb apply")
	for name, change := range map[string]func(*Holder){
		"host":          func(h *Holder) { h.Host = "elsewhere" },
		"boot":          func(h *Holder) { h.Boot = "another" },
		"boot unknown":  func(h *Holder) { h.Boot = "" },
		"PID namespace": func(h *Holder) { h.Space = "pid:[1]" },
	} {
		h := self
		h.PID = 1 << 30 // beyond the largest PID there can be
		if !h.gone(self) {
			t.Fatal("a PID that cannot exist counts as alive")
		}
		if change(&h); h.gone(self) {
			t.Errorf("another %s: counts as dead", name)
		}
	}
}

func TestHeldErrorText(t *testing.T) {
	h := Holder{User: "root", Host: "host", PID: 123, Migration: "shop", Command: "replumb apply"}
	h.Since = time.Date(2026, 3, 1, 12, 3, 4, 0, time.Local)
	for now, want := range map[time.Time]string{
		h.Since.Add(time.Hour):      "migration shop is being worked on by root@host (pid 123, replumb apply) since 12:03:04",
		h.Since.Add(24 * time.Hour): "migration shop is being worked on by root@host (pid 123, replumb apply) since 2026-03-01 12:03:04",
	} {
		if got := (&HeldError{Holder: h, now: now}).Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
