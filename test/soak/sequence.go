package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/lab/workload"
	"github.com/replumb/replumb/test/soak/audit"
	"github.com/replumb/replumb/test/soak/model"
)

// The ranges that migrations lead through, one after the other. The first is the lab's.
const (
	firstRange = "10.96.0.0/16"
	nextRanges = "172.%d.0.0/16"
	// They go round before they come to the network of the lab's machines.
	nextRange, rangesThere = 24, 6
)

// rangeOf is where the n-th migration leads.
func rangeOf(n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(nextRanges, nextRange+(n-1)%rangesThere))
}

// auditWithin is how long the cluster may take to come to rest once no one does anything any more: pods go on serving for a while after
// they were asked to end, and namespaces go when they are empty.
const auditWithin = 5 * time.Minute

// lookFor is for how long an operator looks at a run that ended by itself.
const lookFor = 20 * time.Second

// migration is the n-th one.
type migration struct {
	number     int
	name, file string
	old, new   netip.Prefix
}

func (s *soak) migration(n int, old netip.Prefix) (migration, error) {
	m := migration{number: n, name: fmt.Sprintf("soak-%d", n), old: old, new: rangeOf(n)}
	m.file = filepath.Join(s.dir, m.name+".yaml")
	return m, os.WriteFile(m.file, []byte(m.text(s.apiServers)), 0o600)
}

// text is what an operator would write.
func (m migration) text(apiServers []string) string {
	return fmt.Sprintf(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: %s}
spec:
  serviceCIDR:
    to: [%s]
    drain: 35s
    gateWait: 10m
    apiServers: [%s]
  batch: {size: 8, settle: 1s}
  image: %s
  proof: {agents: Disabled}
`, m.name, m.new, strings.Join(apiServers, ", "), workload.ReplumbImage)
}

// control has users at work, and trouble, without any migration.
func (s *soak) control(ctx context.Context) error {
	s.phase("control, without any migration")
	if err := s.start(ctx, 0); err != nil {
		return err
	}
	if err := s.rest(ctx, s.length/6); err != nil {
		return err
	}
	if err := s.audit(ctx, audit.Before); err != nil {
		return err
	}
	for _, group := range []string{s.names, s.addresses} {
		t, err := s.calls.lived(ctx, group, s.kills())
		if err != nil {
			return err
		}
		s.without.add(t)
	}
	return s.lossless(s.without)
}

// cycle goes there, back, there again, and finishes.
func (s *soak) cycle(ctx context.Context, n int) error {
	m, err := s.migration(n, s.want.Old)
	if err != nil {
		return err
	}
	if s.addresses == "" {
		if err := s.startAddresses(ctx, n); err != nil {
			return err
		}
	}
	s.want.New = m.new
	for _, step := range []func(context.Context, migration) error{
		s.apply, s.rollback, s.apply, s.renewClients, s.finish,
	} {
		if err := step(ctx, m); err != nil {
			return err
		}
	}
	s.want.Old, s.want.New = m.new, netip.Prefix{}
	s.cycles++
	return nil
}

// apply begins a migration: from now on the model knows what it finds and what comes later.
func (s *soak) apply(ctx context.Context, m migration) error {
	if err := s.mark(ctx); err != nil {
		return err
	}
	if err := s.run(ctx, m.new, nil, applying(m)...); err != nil {
		return err
	}
	s.stages.enter(model.Overlap, time.Now())
	if err := s.audit(ctx, audit.Overlap); err != nil {
		return err
	}
	s.phase("overlap of " + m.name)
	if err := s.rest(ctx, s.pause()); err != nil {
		return err
	}
	return s.audit(ctx, audit.Overlap) // once more: bridges have followed meanwhile
}

func (s *soak) rollback(ctx context.Context, m migration) error {
	// What users made in the new range goes to the old one with the rest, or keeps the range: the operator is asked.
	late := []servicecidr.CreatedDuringPolicy{servicecidr.MoveCreatedDuring, servicecidr.KeepCreatedDuring}[s.random.IntN(2)]
	if err := s.run(ctx, m.old, nil, "rollback", m.name, "--late", string(late), "--yes"); err != nil {
		return err
	}
	s.stages.enter(model.Quiet, time.Now())
	if err := s.audit(ctx, audit.RolledBack); err != nil {
		return err
	}
	s.phase("after rollback of " + m.name)
	if err := s.lived(ctx, s.names, s.addresses); err != nil {
		return err
	}
	return s.rest(ctx, s.pause())
}

// renewClients ends the clients of old addresses, which finish takes away. Those by name are pods of before, which ask cluster DNS at
// its old address: others take their place, as finish wants it of what replumb does not restart.
func (s *soak) renewClients(ctx context.Context, m migration) error {
	s.phase("renewing clients")
	s.trouble.Lock()
	defer s.trouble.Unlock()
	before, addresses := s.names, s.addresses
	if err := s.startNames(ctx, m.number); err != nil {
		return err
	}
	if err := s.lived(ctx, before, addresses); err != nil {
		return err
	}
	s.addresses = ""
	for _, group := range []string{before, addresses} {
		if err := s.calls.end(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

func (s *soak) finish(ctx context.Context, m migration) error {
	// What users did since, such as to take a pin away, is for apply, without which finish refuses.
	again := func(ctx context.Context) error { return s.run(ctx, m.new, nil, applying(m)...) }
	if err := again(ctx); err != nil {
		return err
	}
	if err := s.run(ctx, m.new, again, "finish", m.name, "--yes"); err != nil {
		return err
	}
	s.stages.enter(model.Quiet, time.Now())
	if err := s.audit(ctx, audit.Finished); err != nil {
		return err
	}
	return s.lived(ctx, s.names)
}

func applying(m migration) []string { return []string{"apply", "-f", m.file, "--yes"} }

// run has a command run until it is done, amended when it ended before.
func (s *soak) run(ctx context.Context, to netip.Prefix, amend func(context.Context) error, args ...string) error {
	s.stages.enter(model.Moving, time.Now())
	c := &command{
		program: filepath.Join(s.bin, "replumb"), args: append(args, "-o", "json", "--kubeconfig", s.kubeconfig),
		act: toward(s.lab, &s.trouble.Mutex, to).act, random: s.random, look: lookFor, amend: amend, say: s.say,
		heard: func(e engine.Event) { s.phase(strings.Join([]string{args[0], e.Phase, e.Step}, " ")) },
	}
	err := c.run(ctx)
	s.commands++
	s.commandKills += c.kills
	s.stumbles += c.stumbles
	return err
}

// mark has the model know that a migration begins, and where Services are.
func (s *soak) mark(ctx context.Context) error {
	s.users.Lock()
	defer s.users.Unlock()
	was, err := s.where(ctx)
	if err != nil {
		return err
	}
	s.users.generator.Mark()
	s.want.Was = was
	return nil
}

// where are the addresses of all Services.
func (s *soak) where(ctx context.Context) (map[model.Key]string, error) {
	list := &corev1.ServiceList{}
	if err := persist(ctx, func(ctx context.Context) error { return s.client.List(ctx, list) }); err != nil {
		return nil, err
	}
	at := map[model.Key]string{}
	for _, svc := range list.Items {
		at[model.Key{Namespace: svc.Namespace, Name: svc.Name}] = svc.Spec.ClusterIP
	}
	return at, nil
}

// audit has users and trouble pause, and the cluster come to rest, in which nothing may be wrong then.
func (s *soak) audit(ctx context.Context, stage audit.Stage) error {
	s.phase("audit, " + string(stage))
	s.users.Lock()
	defer s.users.Unlock()
	s.trouble.Lock()
	defer s.trouble.Unlock()
	want := s.want
	want.Stage = stage
	if stage == audit.Before {
		want.Was = nil
	}
	var found []audit.Defect
	var have audit.Snapshot
	err := until(ctx, auditWithin, "the cluster to be as it should", func(ctx context.Context) (err error) {
		if have, err = s.camera.take(ctx); err != nil {
			return err
		}
		if found = audit.Audit(want, have); len(found) > 0 {
			return fmt.Errorf("there are %d defects", len(found))
		}
		s.audited += len(have.Everything)
		return nil
	})
	s.audits++
	if err == nil {
		if stage == audit.RolledBack {
			s.want.Keep(have)
		}
		return nil
	}
	s.defects += len(found)
	for _, d := range found {
		s.say("DEFECT %s: %s", stage, d)
	}
	return fmt.Errorf("audit, %s: %w", stage, err)
}

// lived adds what clients lived through, of which nothing may be lost.
func (s *soak) lived(ctx context.Context, groups ...string) error {
	var part tally
	for _, group := range groups {
		t, err := s.calls.lived(ctx, group, s.kills())
		if err != nil {
			return err
		}
		part.add(t)
	}
	s.with.add(part)
	return s.lossless(part)
}

func (s *soak) lossless(t tally) error {
	if t.Lost+t.Broken == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d requests were lost, and %d connections broke", t.Lost, t.Sent, t.Broken)
}

// kills are when API servers were killed.
func (s *soak) kills() []time.Time {
	_, kills, _ := s.trouble.counted()
	return kills
}

// rest lets time pass, in which users are at work.
func (s *soak) rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// pause is for how long nothing is done between commands.
func (s *soak) pause() time.Duration {
	const least, most = 30 * time.Second, 3 * time.Minute
	longest := min(most, max(least, s.length/20))
	return least + time.Duration(s.random.Int64N(int64(longest-least)+1))
}
