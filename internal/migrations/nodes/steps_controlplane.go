package nodes

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/etcd"
)

// deleteControlPlaneNode deletes the Node, if there is one, and records that its machine has ended.
func (cp *controlPlane) deleteControlPlaneNode(name string, certain bool) effect {
	node, record := cp.deleteNode(name, certain), cp.record().gone(name)
	if !cp.hasNode(name) {
		node.changes = nil
	}
	gone := effect{do: func(ctx context.Context) error { return cp.deleted(ctx, name) }}
	return node.then(gone).then(record)
}

// provisioned is what the action that makes a control plane may answer.
type provisioned struct {
	v1alpha1.MemberStatus
	Events *v1alpha1.MemberStatus `json:"events,omitempty"`
}

// recordSuccessor records the member that replaces a node: as the action answered, or as it joined.
func (cp *controlPlane) recordSuccessor(ctx context.Context, name string, answer *provisioned) error {
	all, err := cp.record().nodes(ctx)
	if n := nodeRecord(all, name); err != nil || n != nil && n.Successor != nil {
		return err
	}
	if answer.PeerURL == "" {
		joined, err := cp.joined(ctx, all)
		if err != nil || len(joined) == 0 {
			return err
		}
		answer.MemberStatus = joined[0]
	}
	if !within([]string{answer.PeerURL}, cp.spec.New.CIDRs).IsValid() {
		return fmt.Errorf("control-plane node %s joined at %s, which is not in %v", answer.Name, answer.PeerURL, cp.spec.New.CIDRs)
	}
	return cp.record().updateNode(ctx, name, func(n *v1alpha1.NodeStatus) {
		n.Successor, n.EventsSuccessor = answer.DeepCopy(), answer.Events
	})
}

// joined are new members of etcd, or API servers where etcd is external.
func (cp *controlPlane) joined(ctx context.Context, recorded []v1alpha1.NodeStatus) ([]v1alpha1.MemberStatus, error) {
	now := &Inventory{Spec: cp.spec, Recorded: recorded}
	var err error
	if cp.spec.external() {
		servers, err := cp.apiServers(ctx)
		return now.ControlPlane().newServers(servers), err
	}
	now.Etcd, err = cp.etcd.Load(ctx)
	if err != nil {
		return nil, err
	}
	return now.ControlPlane().unassigned(), nil
}

func (r record) successor(ctx context.Context, name string) (*v1alpha1.MemberStatus, error) {
	all, err := r.nodes(ctx)
	if err != nil {
		return nil, err
	}
	if n := nodeRecord(all, name); n != nil && n.Successor != nil {
		return n.Successor, nil
	}
	return nil, engine.NotYet("no control-plane node has joined that replaces %s", name)
}

// unknownMember stands in previews for the successor of a node.
func unknownMember(of string) *v1alpha1.MemberStatus {
	return &v1alpha1.MemberStatus{Name: "(successor of " + of + ")", PeerURL: "(of the successor of " + of + ")"}
}

// memberStep changes a member of etcd that is known only when its turn comes.
type memberStep struct {
	live
	id, title string
	of        string
	find      func(context.Context) (*v1alpha1.MemberStatus, error)
	step      func(*v1alpha1.MemberStatus) engine.Step
}

var (
	_ engine.Timed     = (*memberStep)(nil)
	_ engine.Waiter    = (*memberStep)(nil)
	_ engine.Previewer = (*memberStep)(nil)
)

func (cp *controlPlane) memberStep(id, title string, c *ControlPlaneNode, step func(*v1alpha1.MemberStatus) engine.Step) engine.Step {
	return &memberStep{
		live:  cp.live,
		id:    id,
		title: title,
		of:    c.Name,
		step:  step,
		find: func(ctx context.Context) (*v1alpha1.MemberStatus, error) {
			return cp.record().successor(ctx, c.Name)
		},
	}
}

func (s *memberStep) ID() string    { return s.id }
func (s *memberStep) Title() string { return s.title }

// Deadline implements engine.Timed: a database of some gigabytes takes its time.
func (s *memberStep) Deadline() time.Duration { return s.spec.GateWait }

// Waits implements engine.Waiter: catching up can take long. It writes, all the same: see Preview.
func (s *memberStep) Waits() {}

func (s *memberStep) State(ctx context.Context) (engine.State, error) {
	m, err := s.find(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	return s.step(m).State(ctx)
}

func (s *memberStep) Do(ctx context.Context) error {
	m, err := s.find(ctx)
	if err != nil {
		return err
	}
	return s.step(m).Do(ctx)
}

func (s *memberStep) Verify(ctx context.Context) error {
	m, err := s.find(ctx)
	if err != nil {
		return err
	}
	return s.step(m).Verify(ctx)
}

func (s *memberStep) Preview() ([]engine.Change, error) {
	return engine.Preview(s.step(unknownMember(s.of)))
}

// serves waits until the API server of a successor is an endpoint of the Service kubernetes.
func (l live) serves(c *ControlPlaneNode) engine.Step {
	return &engine.Wait{
		Name: "serves/" + c.Name, About: "Wait until the API server that replaces " + c.Name + "'s serves", Limit: l.spec.GateWait,
		For: func(ctx context.Context) error {
			m, err := l.record().successor(ctx, c.Name)
			if err != nil {
				return err
			}
			at := within([]string{m.PeerURL}, l.spec.New.CIDRs)
			all, err := l.apiServers(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(all, func(a netip.AddrPort) bool { return a.Addr() == at })
			if i < 0 {
				return engine.NotYet("the API server at %s is no endpoint of service default/kubernetes yet", at)
			}
			return l.hasNames(ctx, all[i])
		},
	}
}

// hasNames fails if an API server's certificate lacks a name that clients use.
func (l live) hasNames(ctx context.Context, at netip.AddrPort) error {
	names := make([]string, len(l.spec.ControlPlane.Records))
	for i, r := range l.spec.ControlPlane.Records {
		names[i] = strings.TrimSuffix(r.Name, ".")
	}
	return apiserver.New(l.Cluster.RESTConfig()).Answers(ctx, at.String(), names...)
}

func (l live) apiServers(ctx context.Context) ([]netip.AddrPort, error) {
	list := &discoveryv1.EndpointSliceList{}
	err := l.Cluster.List(ctx, list, client.InNamespace(metav1.NamespaceDefault),
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

// apiServerStopped fails as long as the API server is an endpoint, or answers.
func (l live) apiServerStopped(ctx context.Context, c *v1alpha1.NodeStatus) error {
	all, err := l.apiServers(ctx)
	if err != nil {
		return err
	}
	for _, a := range all {
		if slices.Contains(c.Addresses, a.Addr().String()) {
			return engine.NotYet("the API server at %s is still an endpoint of service default/kubernetes", a)
		}
	}
	return silent(ctx, c, portsOf(all))
}

// usualPort is where kubeadm has API servers listen.
const usualPort = 6443

// portsOf are the ports of API servers: 443 with kOps. Without any it is the usual one.
func portsOf(servers []netip.AddrPort) []uint16 {
	var ports []uint16
	for _, a := range servers {
		if !slices.Contains(ports, a.Port()) {
			ports = append(ports, a.Port())
		}
	}
	if len(ports) == 0 {
		return []uint16{usualPort}
	}
	return ports
}

// silent fails as long as something answers where the API server of a control-plane node was.
func silent(ctx context.Context, c *v1alpha1.NodeStatus, ports []uint16) error {
	for _, host := range c.Addresses {
		for _, port := range ports {
			dial, cancel := context.WithTimeout(ctx, 2*time.Second)
			at := net.JoinHostPort(host, strconv.Itoa(int(port)))
			conn, err := new(net.Dialer).DialContext(dial, "tcp", at)
			cancel()
			if err == nil {
				_ = conn.Close()
				return engine.NotYet("the API server at %s still answers", at)
			}
		}
	}
	return nil
}

// endpoints are those that the Migration names and those of successors.
func endpoints(e *v1alpha1.EtcdSpec, known []v1alpha1.NodeStatus) []string {
	all := slices.Clone(e.Endpoints)
	first, err := url.Parse(all[0])
	if err != nil || e.External {
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

// eventsLabel tells the second etcd from the first one.
const eventsLabel = "events"

func (s *Spec) openEtcd(ctx context.Context, e *v1alpha1.EtcdSpec, label string, known []v1alpha1.NodeStatus) (*etcd.Client, error) {
	config, err := etcd.Files{CA: e.CAFile, Cert: e.CertFile, Key: e.KeyFile}.Load()
	if err != nil {
		return nil, err
	}
	return etcd.Open(ctx, etcd.Config{Endpoints: endpoints(e, known), TLS: config, Run: s.Name, Label: label})
}

func (l live) controlPlaneMoved(members, events *etcd.Client) engine.Step {
	return &engine.Wait{
		Name: "verify/control-plane", About: "Verify that the control plane has left the old network", Again: true,
		For: func(ctx context.Context) error {
			for _, c := range []*etcd.Client{members, events} {
				if err := l.membersMoved(ctx, c); err != nil {
					return err
				}
			}
			servers, err := l.apiServers(ctx)
			if err != nil {
				return err
			}
			for _, a := range servers {
				if slices.ContainsFunc(l.spec.Old.CIDRs, func(c netip.Prefix) bool { return c.Contains(a.Addr()) }) {
					return engine.NotYet("the API server at %s is still an endpoint of service default/kubernetes", a)
				}
			}
			return nil
		},
	}
}

func (l live) membersMoved(ctx context.Context, members *etcd.Client) error {
	if members == nil || l.spec.external() {
		return nil
	}
	now, err := members.Load(ctx)
	if err != nil {
		return err
	}
	for i := range now.Members {
		if at := within(now.Members[i].PeerURLs, l.spec.Old.CIDRs); at.IsValid() {
			return fmt.Errorf("etcd member %s is still at %s", now.Members[i].Called(), at)
		}
	}
	return nil
}
