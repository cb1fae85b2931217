package nodes

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/migration"
)

// The actions for control planes beside those for workers.
const actionRetire = "retire"

// controlPlane moves one after the other. The first one brings the names of the API with it.
//
// Without a look at etcd there is nothing to plan with; RP3401 has said so.
func (p *Planner) controlPlane() []engine.Group {
	if p.Etcd == nil || p.Survey.Etcd == nil {
		return nil
	}
	var groups []engine.Group
	chiefs := p.Survey.Chiefs()
	var leaving []string
	for i := range chiefs {
		leaving = append(leaving, chiefs[i].Name)
	}
	first := true
	for i := range chiefs {
		c := &chiefs[i]
		if c.Stage() == StageGone {
			continue
		}
		serves, rest := p.succeed(c), p.replace(c, leaving, p.Survey.voters())
		if p.spec().ControlPlane.Mode == v1alpha1.ControlPlaneReplace {
			serves, rest = p.comeBack(c, leaving), nil
		}
		groups = append(groups, engine.Group{Title: c.Name, Parallel: 1, Steps: serves})
		if first {
			groups, first = append(groups, traffic(p.APIRecords)...), false
		}
		if len(rest) > 0 {
			groups = append(groups, engine.Group{Title: c.Name, Parallel: 1, Steps: rest})
		}
	}
	if len(groups) == 0 {
		return nil
	}
	begin := inOrder(p.Etcd.SnapshotStep(p.spec().snapshotFile()), &chiefsStep{tools: p.Tools, spec: p.spec(), all: chiefs})
	return append(begin, groups...)
}

func (s Spec) snapshotFile() string {
	if s.ControlPlane.Etcd.SnapshotFile != "" {
		return s.ControlPlane.Etcd.SnapshotFile
	}
	return s.Name + ".etcd.db"
}

// succeed brings another control plane in, up to the point where its API server serves.
func (p *Planner) succeed(c *Chief) []engine.Step {
	steps := []engine.Step{
		p.Etcd.HealthyStep("before/"+c.Name, p.successorOf(c)...),
		p.provision(c),
		p.late(
			"learner/"+c.Name,
			"Make the etcd of "+c.Name+"'s successor a member without a vote",
			c,
			func(m *v1alpha1.MemberStatus) engine.Step {
				return p.Etcd.LearnerStep(m.Name, m.PeerURL)
			},
		),
		p.late("vote/"+c.Name, "Give it its vote once it has caught up", c, func(m *v1alpha1.MemberStatus) engine.Step {
			return p.Etcd.PromotedStep(m.Name, m.PeerURL)
		}),
		&servesStep{planner: p, of: c.Name},
		p.Etcd.HealthyStep("joined/"+c.Name, c.Name),
	}
	if settle := p.spec().ControlPlane.Settle.Duration; settle > 0 && c.Member {
		steps = append(steps, &migration.PauseStep{
			Name:   "settle/" + c.Name,
			About:  fmt.Sprintf("Give load balancers %s to see the new API server", settle),
			Length: settle,
			Now:    p.Tools.Now,
		})
	}
	return steps
}

// successorOf is who may be without a vote when a run is taken up again, and who may have ended.
func (p *Planner) successorOf(c *Chief) []string {
	if c.Successor == nil {
		return []string{c.Name}
	}
	return []string{c.Name, c.Successor.Name, c.Successor.PeerURL}
}

// replace takes a control plane out whose successor serves.
func (p *Planner) replace(c *Chief, leaving []string, voters int) []engine.Step {
	s := p.spec().ControlPlane
	status := c.NodeStatus
	return append(p.emptied(c.Name),
		p.retire(c),
		p.Etcd.HandedOverStep(c.Name, leaving...),
		p.Etcd.RemovedStep(c.Name, voters),
		&outside{
			id: "terminate/" + c.Name, title: "End control plane " + c.Name, wait: p.spec().GateWait, action: s.Terminate,
			guide:   fmt.Sprintf("Control plane %s has left etcd. End its machine. replumb goes on by itself.", c.Name),
			request: p.controlRequest(actionTerminate, &status),
			after: func(ctx context.Context) error {
				return p.Tools.buryChief(ctx, p.spec().Name, c.Name, s.Terminate != nil)
			},
			done: func(ctx context.Context) error {
				now, err := p.Tools.remembered(ctx, p.spec())
				if n := remembered(now.Remembered, c.Name); err == nil && (n == nil || !n.Gone) {
					return engine.NotYet("control plane %s has not ended", c.Name)
				}
				return err
			},
		},
		p.Etcd.HealthyStep("after/"+c.Name),
	)
}

// retire ends the API server of a control plane. From then on it is not as it was.
func (p *Planner) retire(c *Chief) engine.Step {
	status := c.NodeStatus
	return &outside{
		id:     "retire/" + c.Name,
		title:  "End the API server of " + c.Name,
		wait:   p.spec().GateWait,
		action: p.spec().ControlPlane.Retire,
		guide: "On " + c.Name + ", move kube-apiserver.yaml out of /etc/kubernetes/manifests (or do what else ends its API server in good order). " +
			"replumb goes on by itself.",
		request: p.controlRequest(actionRetire, &status),
		before:  func(ctx context.Context) error { return p.Tools.noteEnd(ctx, p.spec().Name, status) },
		done:    func(ctx context.Context) error { return p.Tools.withdrawn(ctx, &status) },
	}
}

// emptied has pods leave the Node of a control plane, if it has one: cluster DNS, for instance, may be there.
func (p *Planner) emptied(name string) []engine.Step {
	if !slices.ContainsFunc(p.Survey.Nodes, func(n corev1.Node) bool { return n.Name == name }) {
		return nil
	}
	return []engine.Step{
		&closeStep{p.node(name), corev1.TaintEffectNoSchedule}, &sinceStep{p.node(name)}, p.drain(name), p.settled(name),
	}
}

func (p *Planner) controlRequest(action string, node *v1alpha1.NodeStatus) Request {
	r := p.request(action, func(*Request) {})
	r.Role, r.Node = v1alpha1.RoleControlPlane, node
	return r
}

// buryChief deletes the Node of a control plane, if it has one, and writes down that its machine has ended.
func (t Tools) buryChief(ctx context.Context, migrationName, name string, certain bool) error {
	if err := t.bury(ctx, name, certain); err != nil {
		return err
	}
	if err := t.gone(ctx, name); err != nil {
		return err
	}
	return t.noteGone(ctx, migrationName, name)
}

// provision has another control plane made, and remembers whose successor it is.
func (p *Planner) provision(c *Chief) engine.Step {
	answer := &v1alpha1.MemberStatus{}
	status := c.NodeStatus
	request := p.controlRequest(actionProvision, &status)
	request.Count = 1
	return &outside{
		id: "provision/" + c.Name, title: "Have a control plane join in the stead of " + c.Name, wait: p.spec().GateWait,
		action: p.spec().ControlPlane.Provision, request: request, answer: answer,
		guide: "Make a control plane in the new network and join it to the cluster, with its etcd. replumb goes on by itself.",
		after: func(ctx context.Context) error { return p.appoint(ctx, c, answer) },
		done: func(ctx context.Context) error {
			m, err := p.appointed(ctx, c.Name)
			if err == nil && m == nil {
				return engine.NotYet("no control plane has joined in the stead of %s", c.Name)
			}
			return err
		},
	}
}

// appoint remembers who comes in the stead of a control plane: the one that was answered, or one that has joined by itself.
func (p *Planner) appoint(ctx context.Context, c *Chief, answer *v1alpha1.MemberStatus) error {
	if have, err := p.appointed(ctx, c.Name); err != nil || have != nil {
		return err
	}
	if answer.PeerURL == "" {
		now, err := p.Tools.remembered(ctx, p.spec())
		if err != nil {
			return err
		}
		if now.Etcd, err = p.Etcd.Look(ctx); err != nil {
			return err
		}
		all := now.newcomers()
		if len(all) == 0 {
			return nil
		}
		answer = &all[0]
	}
	if !within([]string{answer.PeerURL}, p.spec().New.CIDRs).IsValid() {
		return fmt.Errorf("control plane %s joined at %s, which is not in %v", answer.Name, answer.PeerURL, p.spec().New.CIDRs)
	}
	return migration.UpdateStatus(ctx, p.Tools.Cluster, p.spec().Name, func(st *v1alpha1.MigrationStatus) {
		if n := remembered(st.Nodes, c.Name); n != nil {
			n.Successor = answer
		}
	})
}

func (p *Planner) appointed(ctx context.Context, name string) (*v1alpha1.MemberStatus, error) {
	now, err := p.Tools.remembered(ctx, p.spec())
	if err != nil {
		return nil, err
	}
	if n := remembered(now.Remembered, name); n != nil {
		return n.Successor, nil
	}
	return nil, nil
}

// remembered is a survey of nothing but what the Migration knows.
func (t Tools) remembered(ctx context.Context, s Spec) (*Survey, error) {
	m, err := migration.Get(ctx, t.Cluster, s.Name)
	out := &Survey{Spec: s}
	if m != nil {
		out.Remembered = m.Status.Nodes
	}
	return out, err
}

// lateStep is one that is about a successor, who is not known when the plan is made.
type lateStep struct {
	planner   *Planner
	id, title string
	of        string
	make      func(*v1alpha1.MemberStatus) engine.Step

	made engine.Step
}

func (p *Planner) late(id, title string, c *Chief, make func(*v1alpha1.MemberStatus) engine.Step) engine.Step {
	return &lateStep{planner: p, id: id, title: title, of: c.Name, make: make}
}

func (s *lateStep) ID() string    { return s.id }
func (s *lateStep) Title() string { return s.title }

// Deadline implements engine.Timed: a database of some gigabytes takes its time.
func (s *lateStep) Deadline() time.Duration { return s.planner.spec().GateWait }

// Waits implements engine.Waiter.
func (s *lateStep) Waits() {}

func (s *lateStep) step(ctx context.Context) (engine.Step, error) {
	if s.made != nil {
		return s.made, nil
	}
	m, err := s.planner.appointed(ctx, s.of)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, engine.NotYet("nobody is known to come in the stead of %s", s.of)
	}
	s.made = s.make(m)
	return s.made, nil
}

func (s *lateStep) State(ctx context.Context) (engine.State, error) {
	step, err := s.step(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	return step.State(ctx)
}

func (s *lateStep) Do(ctx context.Context) error {
	step, err := s.step(ctx)
	if err != nil {
		return err
	}
	return step.Do(ctx)
}

func (s *lateStep) Verify(ctx context.Context) error {
	step, err := s.step(ctx)
	if err != nil {
		return err
	}
	return step.Verify(ctx)
}

// servesStep waits until the API server of a successor is an endpoint of the Service kubernetes.
type servesStep struct {
	planner *Planner
	of      string
}

func (s *servesStep) ID() string { return "serves/" + s.of }
func (s *servesStep) Title() string {
	return "Wait until the API server in the stead of " + s.of + "'s serves"
}
func (s *servesStep) Deadline() time.Duration { return s.planner.spec().GateWait }
func (*servesStep) Waits()                    {}

func (s *servesStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}
func (*servesStep) Do(context.Context) error { return nil }

func (s *servesStep) Verify(ctx context.Context) error {
	m, err := s.planner.appointed(ctx, s.of)
	if err != nil {
		return err
	}
	if m == nil {
		return engine.NotYet("nobody is known to come in the stead of %s", s.of)
	}
	at := within([]string{m.PeerURL}, s.planner.spec().New.CIDRs)
	all, err := s.planner.Tools.servers(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(a netip.AddrPort) bool { return a.Addr() == at }) {
		return engine.NotYet("the API server at %s is no endpoint of service default/kubernetes yet", at)
	}
	return s.goodFor(ctx, at)
}

// goodFor fails if an API server does not identify itself by every name that its clients use.
func (s *servesStep) goodFor(ctx context.Context, at netip.Addr) error {
	address := netip.AddrPortFrom(at, apiPort).String()
	dial, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	// Whose authority it is, clients find out. Here only the names matter.
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
	conn, err := dialer.DialContext(dial, "tcp", address)
	if err != nil {
		return engine.NotYet("the API server at %s does not answer: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	for _, r := range s.planner.spec().ControlPlane.Records {
		name := strings.TrimSuffix(r.Name, ".")
		if err := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].VerifyHostname(name); err != nil {
			return fmt.Errorf("the certificate of the API server at %s is not good for %s: %w", address, name, err)
		}
	}
	return nil
}

// servers are the endpoints of the Service kubernetes.
func (t Tools) servers(ctx context.Context) ([]netip.AddrPort, error) {
	list := &discoveryv1.EndpointSliceList{}
	err := t.Cluster.List(ctx, list, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("endpoints of service default/kubernetes: %w", err)
	}
	var out []netip.AddrPort
	for _, text := range apiserver.Addresses(list.Items) {
		if a, err := netip.ParseAddrPort(text); err == nil {
			out = append(out, a)
		}
	}
	return out, nil
}

// withdrawn reports whether the API server of a control plane leads nobody there any more.
func (t Tools) withdrawn(ctx context.Context, c *v1alpha1.NodeStatus) error {
	all, err := t.servers(ctx)
	if err != nil {
		return err
	}
	for _, a := range all {
		if slices.Contains(c.Addresses, a.Addr().String()) {
			return engine.NotYet("the API server at %s is still an endpoint of service default/kubernetes", a)
		}
	}
	return silent(ctx, c)
}

// apiPort is where kubeadm has API servers listen.
const apiPort = 6443

// silent reports whether nothing answers where a control plane's API server was.
func silent(ctx context.Context, c *v1alpha1.NodeStatus) error {
	for _, host := range c.Addresses {
		dial, cancel := context.WithTimeout(ctx, 2*time.Second)
		at := net.JoinHostPort(host, strconv.Itoa(apiPort))
		conn, err := new(net.Dialer).DialContext(dial, "tcp", at)
		cancel()
		if err == nil {
			_ = conn.Close()
			return engine.NotYet("the API server at %s still answers", at)
		}
	}
	return nil
}

// chiefsStep writes down which control planes leave, before anything changes.
type chiefsStep struct {
	tools Tools
	spec  Spec
	all   []Chief
}

func (*chiefsStep) ID() string { return "secure/control-plane" }
func (s *chiefsStep) Title() string {
	var names []string
	for i := range s.all {
		names = append(names, s.all[i].Name)
	}
	return "Write down the control planes that leave: " + strings.Join(names, ", ")
}

func (s *chiefsStep) rememberer() *rememberStep {
	r := &rememberStep{tools: s.tools, spec: s.spec}
	for i := range s.all {
		r.all = append(r.all, s.all[i].NodeStatus)
	}
	return r
}

func (s *chiefsStep) State(ctx context.Context) (engine.State, error) {
	return s.rememberer().State(ctx)
}
func (s *chiefsStep) Do(ctx context.Context) error     { return s.rememberer().Do(ctx) }
func (s *chiefsStep) Verify(ctx context.Context) error { return s.rememberer().Verify(ctx) }

// endpoints are those that the Migration names and those of successors: at the end none of the former is left.
func (s *Spec) endpoints(known []v1alpha1.NodeStatus) []string {
	all := slices.Clone(s.ControlPlane.Etcd.Endpoints)
	first, err := url.Parse(all[0])
	if err != nil {
		return all
	}
	for _, n := range known {
		if n.Successor == nil {
			continue
		}
		if peer, err := url.Parse(n.Successor.PeerURL); err == nil {
			at := url.URL{Scheme: first.Scheme, Host: net.JoinHostPort(peer.Hostname(), first.Port())}
			all = append(all, at.String())
		}
	}
	return all
}

// openEtcd connects to the members.
func (s *Spec) openEtcd(ctx context.Context, known []v1alpha1.NodeStatus) (*etcd.Client, error) {
	e := s.ControlPlane.Etcd
	config, err := etcd.Files{CA: e.CAFile, Cert: e.CertFile, Key: e.KeyFile}.Load()
	if err != nil {
		return nil, err
	}
	return etcd.Open(ctx, etcd.Config{Endpoints: s.endpoints(known), TLS: config, Run: s.Name})
}
