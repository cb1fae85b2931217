package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func aMover(at, other, movedAt string) mover {
	return mover{
		uid:     "u",
		key:     types.NamespacedName{Namespace: "shop", Name: "cart"},
		at:      parse(at),
		other:   parse(other),
		port:    80,
		movedAt: movedAt,
	}
}

// TestConnects goes through lives of a Service. Each event is what the Service is like, with what
// comes of the attempt, if one is due: for each address ok, no or void.
func TestConnects(t *testing.T) {
	before, away := aMover(oldAt, newAt, ""), aMover(newAt, oldAt, "1")
	onItsWay, returned := aMover("", newAt, ""), aMover(oldAt, newAt, "2")
	udp := away
	udp.port = 0
	udpBefore := before
	udpBefore.port = 0
	type event struct {
		mover    mover
		outcomes string // of the attempt; "-" if none is due
	}
	tests := []struct {
		name      string
		events    []event
		connected int
		failed    []string
	}{
		{"moves well", []event{{before, "ok"}, {before, "-"}, {onItsWay, "-"}, {away, "ok,ok"}, {away, "-"}}, 1, nil},
		{"not moved yet", []event{{before, "ok"}}, 0, nil},
		{"never answered", []event{{before, "no"}, {away, "-"}}, 1, nil},
		{"new one lost", []event{{before, "ok"}, {away, "no,ok"}}, 1, []string{newAt}},
		{"old one lost", []event{{before, "ok"}, {away, "ok,no"}}, 1, []string{oldAt}},
		{"both lost", []event{{before, "ok"}, {away, "no,no"}}, 1, []string{newAt, oldAt}},
		{"old one is taken away meanwhile", []event{{before, "ok"}, {away, "ok,void"}}, 1, nil},
		{"and back", []event{{before, "ok"}, {away, "ok,ok"}, {returned, "no,ok"}}, 1, []string{oldAt}},
		{"on its way back", []event{{before, "ok"}, {away, "ok,ok"}, {onItsWay, "-"}}, 0, nil},
		{"agent came late", []event{{away, "ok,ok"}}, 1, nil},
		{"agent came late, vouched for", []event{{away, "ok,no"}}, 1, []string{oldAt}},
		{"agent came late, nothing answers", []event{{away, "no,no"}, {returned, "-"}}, 1, nil},
		{"agent came late, and it moves again", []event{{away, "void,void"}, {returned, "ok,no"}}, 1, []string{newAt}},
		{"baseline while it left", []event{{before, "void"}, {away, "ok,ok"}}, 1, nil},
		{"no bridge any more", []event{{before, "ok"}, {aMover(newAt, "", "1"), "ok"}}, 1, nil},
		{"datagrams only", []event{{udpBefore, "-"}, {udp, "-"}}, 1, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &connects{}
			for i, e := range tt.events {
				due := c.next([]mover{e.mover})
				if e.outcomes == "-" {
					if len(due) > 0 || !c.idle() {
						t.Fatalf("event %d: due is %+v", i, due)
					}
					continue
				}
				if len(due) != 1 || c.idle() {
					t.Fatalf("event %d: %d attempts", i, len(due))
				}
				if again := c.next([]mover{e.mover}); len(again) > 0 {
					t.Fatalf("event %d: due twice", i)
				}
				c.done(due[0], outcomes(t, due[0], e.outcomes), metav1.NowMicro())
			}
			r := c.report("uid")
			var failed []string
			for _, f := range r.Failed {
				if f.Service != "shop/cart" || f.Error != "no" {
					t.Errorf("failed %+v", f)
				}
				failed = append(failed, netip.MustParseAddrPort(f.Address).Addr().String())
			}
			if r.Connected != tt.connected || fmt.Sprint(failed) != fmt.Sprint(tt.failed) {
				t.Errorf("connected %d, failed %v, want %d, %v", r.Connected, failed, tt.connected, tt.failed)
			}
		})
	}
}

func outcomes(t *testing.T, a attempt, texts string) []outcome {
	t.Helper()
	words := append(strings.Split(texts, ","), "")
	var all []outcome
	for i, address := range a.addresses {
		o := outcome{address: address}
		switch words[i] {
		case "ok":
		case "no":
			o.err = errors.New("no")
		case "void":
			o.err, o.void = errors.New("no"), true
		default:
			t.Fatalf("attempt goes to %v", a.addresses)
		}
		all = append(all, o)
	}
	return all
}

// TestConnectsAgain has a Service move while it is connected to.
func TestConnectsAgain(t *testing.T) {
	c := &connects{}
	due := c.next([]mover{aMover(oldAt, newAt, "")})
	c.next([]mover{aMover(newAt, oldAt, "1")})
	c.done(due[0], outcomes(t, due[0], "ok"), metav1.NowMicro())
	a, is := c.repeat(due[0])
	if !is || a.baseline || c.idle() {
		t.Fatalf("due %v: %+v", is, a)
	}
	c.done(a, outcomes(t, a, "void,void"), metav1.NowMicro())
	if a, is := c.repeat(a); is {
		t.Errorf("due although nothing changed: %+v", a)
	}
}

func TestConnectsForget(t *testing.T) {
	c := &connects{}
	due := c.next([]mover{aMover(oldAt, newAt, "")})
	c.next(nil)
	if c.done(due[0], outcomes(t, due[0], "no"), metav1.NowMicro()) || len(c.records) > 0 {
		t.Error("a Service that is gone is remembered")
	}
}

func TestConnectsManyFailures(t *testing.T) {
	c := &connects{}
	for i := range 40 {
		m := aMover(newAt, oldAt, "1")
		m.uid = types.UID(fmt.Sprint(i))
		due := c.next([]mover{m})
		if !c.done(due[0], outcomes(t, due[0], "ok,no"), metav1.NowMicro()) {
			t.Fatal("no loss")
		}
	}
	if r := c.report("uid"); len(r.Failed) != mostFailed || r.MoreFailed != 8 {
		t.Errorf("%d and %d more", len(r.Failed), r.MoreFailed)
	}
}
