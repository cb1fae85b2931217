// Package rehearsal makes the objects of a snapshot again in an API server without nodes, and runs a migration of Services there with replumb
// itself. What takes nodes is played, and the report says what that was.
package rehearsal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// Options are what a rehearsal is of.
type Options struct {
	// Snapshot is the file of one, Migration that of what is rehearsed.
	Snapshot, Migration string
	// Replumb is the program.
	Replumb string
	// Packets is how many Services are moved in a lab as well, with nodes and under traffic; none, if it is 0.
	Packets int
	// Back rehearses the way back as well, before the one there is gone once more.
	Back bool
	// Assets returns the folder that etcd and kube-apiserver are in.
	Assets func(context.Context) (string, error)
	// Progress says what goes on.
	Progress func(format string, args ...any)
}

// rehearsal is one that goes on.
type rehearsal struct {
	Options
	archive  *offline.Archive
	settings *Settings
	stock    *inventory
	report   *Report
	program  program
	cluster  *cluster
	// ranges are those of the API server, to those that Services go to.
	ranges, to []netip.Prefix
	// dns are the Services at the addresses that kubelets name as cluster DNS.
	dns map[string]client.ObjectKey
	// services are those of the snapshot, for a sample.
	services []corev1.Service
	// kubelets is what those of the nodes said of their configuration.
	kubelets map[string]json.RawMessage
	dir      string
	// inspect, if set, looks at the cluster at the end.
	inspect func(context.Context, client.Client) error
}

// Run rehearses. Its error is of what kept it from doing so; what became of the migration is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	return (&rehearsal{Options: o}).run(ctx)
}

func (m *rehearsal) run(ctx context.Context) (r *Report, err error) {
	begun := time.Now()
	if err := m.read(); err != nil {
		return nil, err
	}
	if m.dir, err = os.MkdirTemp("", "replumb-rehearsal-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(m.dir)) }()
	m.program = program{file: m.Replumb, dir: m.dir}
	assets, err := m.Assets(ctx)
	if err != nil {
		return nil, err
	}
	m.Progress("starting an API server with Service range %s", flagOf(m.ranges))
	server, err := start(assets, m.ranges, m.to, m.stock)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := server.Stop(); err != nil { // one that does not end at once is killed, which is as good
			m.Progress("%v; it was killed", err)
		}
	}()
	if err := m.on(ctx, server); err != nil {
		return nil, err
	}
	if m.Packets > 0 && m.report.Outcome == Done {
		if err := m.packets(ctx); err != nil {
			return nil, err
		}
	}
	m.report.Seconds = time.Since(begun).Seconds()
	return m.report, nil
}

// on rehearses with an API server that has nothing yet.
func (m *rehearsal) on(ctx context.Context, server *apitest.Server) (err error) {
	if m.settings, err = Tame(m.settings.Given, server.Etcd); err != nil {
		return err
	}
	m.report.LeftOut = m.settings.LeftOut
	version, err := server.ServerVersion(ctx)
	if err != nil {
		return err
	}
	m.report.Kubernetes = version.GitVersion
	store, err := openStore(server.Etcd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close()) }()
	restored, err := newRestorer(server.Config, store, m.Progress)
	if err != nil {
		return err
	}
	if err := m.restore(ctx, restored); err != nil {
		return err
	}
	if m.cluster, err = open(ctx, server, m.kubelets); err != nil {
		return err
	}
	defer m.cluster.stop()
	if err := m.rehearse(ctx); err != nil || m.inspect == nil {
		return err
	}
	return m.inspect(ctx, server)
}

// read reads the files, and refuses what cannot be rehearsed before anything is started.
func (m *rehearsal) read() (err error) {
	given, err := readMigration(m.Migration)
	if err != nil {
		return err
	}
	if m.settings, err = Tame(given, ""); err != nil {
		return err
	}
	m.settings.Given = given // once there is an etcd, it is tamed for good
	if m.to, err = targets(given); err != nil {
		return err
	}
	if m.archive, err = offline.Open(m.Snapshot); err != nil {
		return err
	}
	if m.ranges, err = serviceRanges(m.archive); err != nil {
		return err
	}
	if err := fitting(m.ranges); err != nil {
		return err
	}
	if m.Snapshot, err = filepath.Abs(m.Snapshot); err != nil {
		return err
	}
	m.report = &Report{
		Kind: "Rehearsal", Migration: given.Name, Snapshot: m.archive.Head, Played: played(), NotProven: notProven(m.Packets > 0),
		Commands: []*Command{}, Restarts: []string{}, Errors: []string{}, Risks: findings.Findings{}, Only: findings.Findings{},
	}
	if m.stock, err = take(m.archive); err != nil {
		return err
	}
	m.dns = m.askedOfNodes()
	if err := m.sampled(); err != nil {
		return err
	}
	m.report.Objects.NotRead = m.archive.Manifest.NotRead
	m.archive = nil // it may be large, and everything of it that is needed is elsewhere
	return nil
}

// readMigration reads the one Migration of a file.
func readMigration(file string) (*v1alpha1.Migration, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, refusal("name the file of a Migration: -f move.yaml", "%w", err)
	}
	return spec.Read(spec.Source{Name: file, Body: body})
}

// restore makes the objects.
func (m *rehearsal) restore(ctx context.Context, r *restorer) error {
	m.Progress("making %d objects of the snapshot", len(m.stock.objects))
	begun := time.Now()
	if err := r.restore(ctx, m.stock); err != nil {
		return err
	}
	o := &m.report.Objects
	o.Made, o.Seconds, o.Skipped, o.Lacking, o.Refused = r.made, time.Since(begun).Seconds(), m.stock.skipped, r.lacking, r.refused
	m.Progress("made %d objects, %d were refused", r.made, r.lacking)
	m.stock.objects = nil // the cluster has them
	return nil
}

// askedOfNodes keeps what kubelets said, and finds the Services behind the addresses that they name as cluster DNS.
func (m *rehearsal) askedOfNodes() map[string]client.ObjectKey {
	m.kubelets = map[string]json.RawMessage{}
	at := map[string]client.ObjectKey{}
	for _, o := range m.stock.objects {
		switch o.GroupResource() {
		case schema.GroupResource{Resource: "nodes"}:
			m.kubelets[o.GetName()] = m.archive.Kubelet(o.GetName())
		case schema.GroupResource{Resource: "services"}:
			for _, a := range clusterIPs(o) {
				at[a] = client.ObjectKeyFromObject(o)
			}
		}
	}
	found := map[string]client.ObjectKey{}
	for _, said := range m.kubelets {
		for _, a := range clusterDNS(said) {
			if key, is := at[a]; is {
				found[a] = key
			}
		}
	}
	return found
}

func clusterDNS(said []byte) []string {
	var body struct {
		KubeletConfig struct {
			ClusterDNS []string `json:"clusterDNS"`
		} `json:"kubeletconfig"`
	}
	if json.Unmarshal(said, &body) != nil {
		return nil // it is not known
	}
	return body.KubeletConfig.ClusterDNS
}

func clusterIPs(o *object) []string {
	body, err := json.Marshal(o.Object["spec"])
	if err != nil {
		return nil
	}
	s := corev1.ServiceSpec{}
	if json.Unmarshal(body, &s) != nil {
		return nil // the API server refuses it
	}
	return append(s.ClusterIPs, s.ClusterIP)
}

// write writes a Migration to a file.
func (m *rehearsal) write(name string, migration *v1alpha1.Migration) (string, error) {
	body, err := yaml.Marshal(migration)
	if err != nil {
		return "", err
	}
	file := filepath.Join(m.dir, name)
	return file, os.WriteFile(file, body, 0o600)
}

// rehearse looks at the snapshot, looks at the cluster, and moves.
func (m *rehearsal) rehearse(ctx context.Context) error {
	kubeconfig := filepath.Join(m.dir, "kubeconfig")
	given, err := m.write("given.yaml", m.settings.Given)
	if err != nil {
		return err
	}
	rehearsed, err := m.write("rehearsed.yaml", m.settings.Rehearsed)
	if err != nil {
		return err
	}
	if err := m.cluster.front.kubeconfig(kubeconfig); err != nil {
		return err
	}
	m.Progress("checking and planning from the snapshot")
	if m.report.Risks, err = m.check(ctx, "-f", given, "--from", m.Snapshot); err != nil {
		return err
	}
	if err := m.plan(ctx, given); err != nil {
		return err
	}
	m.Progress("checking in the rehearsal")
	found, err := m.check(ctx, "-f", rehearsed, "--kubeconfig", kubeconfig)
	if err != nil {
		return err
	}
	m.report.Only = beside(found, m.report.Risks)
	access := []string{"--kubeconfig", kubeconfig, "--local", "-o", "json"}
	for _, name := range m.course() {
		of := []string{"-f", rehearsed}
		if name != apply {
			of = []string{m.settings.Rehearsed.Name, "--yes"}
		}
		m.Progress("%s", name)
		if err := m.command(ctx, name, slices.Concat([]string{name}, of, access)); err != nil || m.report.Outcome != Done {
			return err
		}
	}
	return nil
}

// The commands that are rehearsed.
const (
	apply    = "apply"
	rollback = "rollback"
	finish   = "finish"
)

// course is what is rehearsed, in order.
func (o Options) course() []string {
	if o.Back {
		return []string{apply, rollback, apply, finish}
	}
	return []string{apply, finish}
}

// Exit codes of replumb that are results.
const (
	codeDone    = fault.ExitDone
	codeBlocked = fault.ExitBlocked
)

// check returns the findings that did not pass.
func (m *rehearsal) check(ctx context.Context, args ...string) (findings.Findings, error) {
	s, err := m.program.run(ctx, append([]string{"check", "-o", "json"}, args...)...)
	if err != nil {
		return nil, err
	}
	if s.code != codeDone && s.code != codeBlocked {
		return nil, failure("check", s)
	}
	var all struct{ Items findings.Findings }
	if err := json.Unmarshal(s.stdout, &all); err != nil {
		return nil, fmt.Errorf("reading what replumb check says: %w", err)
	}
	return all.Items.Open(), nil
}

// failure of a command keeps its exit code, if it is one of the contract.
type failed struct {
	error
	code int
}

func (f *failed) ExitCode() int { return f.code }

func failure(command string, s *said) error {
	code := s.code
	if code < 0 {
		code = fault.ExitError
	}
	return &failed{fmt.Errorf("replumb %s ended with exit code %d: %s", command, s.code, complaint(s.stderr)), code}
}

// tries is how often a command is run: an API server that restarts at a gate may end a run, and the same command carries on.
const tries = 4

// command runs one to its end, and answers gates.
func (m *rehearsal) command(ctx context.Context, name string, args []string) error {
	c, begun := &Command{Command: name, Phases: []Phase{}, Gates: []Gate{}}, time.Now()
	m.report.Commands = append(m.report.Commands, c)
	defer func() { c.Seconds = time.Since(begun).Seconds() }()
	for n := 1; ; n++ {
		g := &gates{rehearsal: m, command: c}
		s, err := m.program.events(ctx, func(e engine.Event, stop func()) { g.hear(ctx, e, stop) }, args...)
		g.done()
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		m.report.Errors = append(m.report.Errors, g.errors...)
		switch {
		case s.code == codeDone:
			m.report.Outcome = Done
			return nil
		case g.stuck:
			m.report.Outcome = Open
			return nil
		case s.code == fault.ExitUsage:
			return failure(name, s)
		}
		why := complaint(s.stderr)
		if s.code != codeBlocked && g.restarted && n < tries {
			c.Again = append(c.Again, why)
			m.Progress("%s ended while the API server restarted; running it again", name)
			continue
		}
		m.report.Errors = append(m.report.Errors, why)
		if m.report.Outcome = Failed; s.code == codeBlocked {
			m.report.Outcome = Blocked
		}
		return nil
	}
}

// progressOf says what goes on, from events.
func (m *rehearsal) progressOf(e engine.Event) {
	switch e.Kind {
	case engine.PhaseStarted:
		m.Progress("phase %s: %s", e.Phase, strings.TrimSpace(e.Message))
	case engine.StepWaiting:
		if e.Guide != "" {
			m.Progress("gate %s: %s", e.Step, e.Message)
		}
	}
}

// restartsTo are the ranges that the API server is given at its gate: those that Services go to, and those of a family that stays.
func (m *rehearsal) restartsTo() ([]netip.Prefix, error) {
	if len(m.to) == 0 {
		return nil, errNoRange
	}
	var all []netip.Prefix
	for _, r := range m.ranges {
		same := func(p netip.Prefix) bool { return p.Addr().Is6() == r.Addr().Is6() }
		if at := slices.IndexFunc(m.to, same); at >= 0 {
			r = m.to[at]
		}
		all = append(all, r)
	}
	return all, nil
}
