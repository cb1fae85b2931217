package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/verify/probe"
)

const (
	oldAt = "10.96.0.9"
	newAt = "172.24.0.9"
)

func migration(change ...func(*v1alpha1.Migration)) *v1alpha1.Migration {
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{}},
	}
	for _, c := range change {
		c(m)
	}
	return m
}

func moveRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("172.24.0.0/16")}
}

func final(m *v1alpha1.Migration) { m.Status.PointOfNoReturnPassed = true }
func back(m *v1alpha1.Migration)  { m.Status.Phase = v1alpha1.PhaseRollingBack }

// service is one at an address; none means that it is on its way.
func service(namespace, name, at string, change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{}, Annotations: map[string]string{},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: at, Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
			{Name: "echo", Port: 7, Protocol: corev1.ProtocolTCP},
			{Name: "echo-udp", Port: 7, Protocol: corev1.ProtocolUDP},
		}},
	}
	if at == "" {
		svc.Spec.Type = corev1.ServiceTypeExternalName
	}
	for _, c := range change {
		c(svc)
	}
	return svc
}

func role(role string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Labels[v1alpha1.LabelRole], svc.Labels[v1alpha1.LabelMigration] = role, "m"
	}
}

// touched notes that the migration has begun to move the Service; movedAt that it has got
// somewhere.
func touched(svc *corev1.Service) {
	svc.Annotations[v1alpha1.LabelMigration] = "m"
	svc.Annotations[v1alpha1.AnnotationOldIP], svc.Annotations[v1alpha1.AnnotationTargetIP] = oldAt, newAt
}

func movedAt(at string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		touched(svc)
		svc.Annotations[v1alpha1.AnnotationMovedAt] = at
	}
}

func deleted(svc *corev1.Service) {
	svc.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
}

func theProbe(at string, change ...func(*corev1.Service)) *corev1.Service {
	return service(v1alpha1.SystemNamespace, "probe", at, append(change, role(v1alpha1.RoleProbe))...)
}

func lines(all []target) []string {
	var texts []string
	for _, t := range all {
		texts = append(texts, fmt.Sprintf("%s %s %s%s %g", t.Name, t.Kind, t.Address, t.Path, t.Rate))
	}
	return texts
}

func TestTargets(t *testing.T) {
	const dns = "pod/dns dns probe.replumb-system.svc.cluster.local. 5"
	const name = "pod/name http probe.replumb-system.svc.cluster.local.:80 5"
	at := func(name, address string) string {
		kind, port := "http", "80"
		switch name {
		case "udp":
			kind, port = "udp", "7"
		case "stream":
			kind, port = "stream", "7"
		}
		return fmt.Sprintf("pod/%s %s %s:%s 5", name, kind, address, port)
	}
	before := []string{at("old-address", oldAt), at("udp", oldAt), at("stream", oldAt), dns, name}
	both := []string{at("old-address", oldAt), at("new-address", newAt), at("udp", oldAt), at("stream", oldAt), dns, name}
	onlyNew := []string{at("new-address", newAt), at("udp", newAt), at("stream", newAt), dns, name}
	tests := []struct {
		name      string
		migration *v1alpha1.Migration
		services  []*corev1.Service
		began     string
		want      []string
	}{
		{"no migration", nil, []*corev1.Service{theProbe(oldAt)}, oldAt, nil},
		{"no Service probe", migration(), []*corev1.Service{service("shop", "cart", oldAt)}, "", nil},
		{
			"another owner's", migration(),
			[]*corev1.Service{service("shop", "probe", oldAt, role(v1alpha1.RoleProbe)), service(v1alpha1.SystemNamespace, "probe", oldAt)},
			"", nil,
		},
		{"not moved", migration(), []*corev1.Service{theProbe(oldAt)}, oldAt, before},
		{"on its way", migration(), []*corev1.Service{theProbe("", touched)}, oldAt, before},
		{"moved", migration(), []*corev1.Service{theProbe(newAt, movedAt("1"))}, oldAt, both},
		{
			"moved before the agent began", migration(),
			[]*corev1.Service{theProbe(newAt, movedAt("1"))},
			newAt,
			[]string{at("old-address", oldAt), at("new-address", newAt), at("udp", oldAt), at("stream", newAt), dns, name},
		},
		{"finish has begun", migration(final), []*corev1.Service{theProbe(newAt, movedAt("1"))}, oldAt, onlyNew},
		{"finished: nothing is remembered", migration(final), []*corev1.Service{theProbe(newAt)}, oldAt, onlyNew},
		{"finished, and it never moved", migration(final), []*corev1.Service{theProbe(oldAt)}, oldAt, []string{
			at("new-address", oldAt), at("udp", oldAt), at("stream", oldAt), dns, name,
		}},
		{"rolling back", migration(back), []*corev1.Service{theProbe(newAt, movedAt("1"))}, oldAt, both},
		{"on its way back", migration(back), []*corev1.Service{theProbe("", touched)}, oldAt, both},
		{"back", migration(back), []*corev1.Service{theProbe(oldAt, movedAt("2"))}, oldAt, before},
		{"back, of an agent that began when it was away", migration(back), []*corev1.Service{theProbe(oldAt, movedAt("2"))}, newAt, before},
		{"about to be deleted", migration(), []*corev1.Service{theProbe(newAt, movedAt("1"), deleted)}, oldAt, nil},
		{"touched by a migration before", migration(), []*corev1.Service{theProbe(newAt, touched, func(svc *corev1.Service) {
			svc.Annotations[v1alpha1.LabelMigration] = "earlier"
		})}, newAt, []string{at("old-address", newAt), at("udp", newAt), at("stream", newAt), dns, name}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, problems := targets(orders{
				origin: v1alpha1.FromPod, domain: "cluster.local", began: parse(tt.began), answered: true, named: true,
				view: view{migration: tt.migration, services: tt.services},
			})
			if !slices.Equal(lines(got), tt.want) || len(problems) > 0 {
				t.Errorf("got\n  %s\nwant\n  %s\nproblems %v", strings.Join(lines(got), "\n  "), strings.Join(tt.want, "\n  "), problems)
			}
			for _, g := range got { // a prober takes them
				if _, err := (probe.Config{Targets: []probe.Target{g.Target}}).Resolve(""); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestTargetsOfTheSingleEndpoint: it is called from the network of pods alone, and only where
// Services move.
func TestTargetsOfTheSingleEndpoint(t *testing.T) {
	single := func(at string, change ...func(*corev1.Service)) *corev1.Service {
		return service(v1alpha1.SystemNamespace, "single", at, append(change, role(v1alpha1.RoleSingle))...)
	}
	const name = "pod/single-name http single.replumb-system.svc.cluster.local.:80 5"
	old, recent := "pod/single-old-address http "+oldAt+":80 5", "pod/single-new-address http "+newAt+":80 5"
	podsMove := func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR = nil }
	for _, tt := range []struct {
		name      string
		origin    v1alpha1.ProbeOrigin
		migration *v1alpha1.Migration
		svc       *corev1.Service
		gate      string
		want      []string
	}{
		{"not moved", v1alpha1.FromPod, migration(), single(oldAt), "named", []string{old, name}},
		{"moved", v1alpha1.FromPod, migration(), single(newAt, movedAt("1")), "named", []string{old, recent, name}},
		{"on its way", v1alpha1.FromPod, migration(), single("", touched), "named", []string{old, name}},
		{"finish has begun", v1alpha1.FromPod, migration(final), single(newAt, movedAt("1")), "named", []string{recent, name}},
		{"not answered yet", v1alpha1.FromPod, migration(), single(oldAt), "", nil},
		{"without a name yet", v1alpha1.FromPod, migration(), single(oldAt), "answered", []string{old}},
		{"from the network of a node", v1alpha1.FromHost, migration(), single(oldAt), "named", nil},
		{"where pods move", v1alpha1.FromPod, migration(podsMove), single(oldAt), "named", nil},
		{"about to be deleted", v1alpha1.FromPod, migration(), single(oldAt, deleted), "named", nil},
		{
			"a tenant's", v1alpha1.FromPod, migration(), service("shop", "single", oldAt, role(v1alpha1.RoleSingle)), "named", nil,
		},
	} {
		got, problems := targets(orders{
			origin: tt.origin, domain: "cluster.local", singleAnswered: tt.gate != "", singleNamed: tt.gate == "named",
			view: view{migration: tt.migration, services: []*corev1.Service{tt.svc}},
		})
		if !slices.Equal(lines(got), tt.want) || len(problems) > 0 {
			t.Errorf("%s: probed are %q, want %q; %v", tt.name, lines(got), tt.want, problems)
		}
	}
}

// TestTargetsWherePodsMove: the Service stays where it is, also past the point of no return. What
// it has no port for is not called, and what a node keeps open through a tunnel cannot be kept.
func TestTargetsWherePodsMove(t *testing.T) {
	m := migration(final, func(m *v1alpha1.Migration) {
		m.Spec.ServiceCIDR, m.Spec.PodCIDR = nil, &v1alpha1.PodCIDRSpec{To: []string{"10.245.0.0/16"}}
	})
	noUDP := func(svc *corev1.Service) {
		svc.Spec.Ports = slices.DeleteFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == portUDP })
	}
	for _, tt := range []struct {
		name   string
		origin v1alpha1.ProbeOrigin
		svc    *corev1.Service
		want   string
	}{
		{"from pods", v1alpha1.FromPod, theProbe(oldAt), "pod/address pod/udp pod/stream pod/dns pod/name"},
		{"from a node", v1alpha1.FromHost, theProbe(oldAt), "host/address host/udp host/dns host/name"},
		{"over a network that drops packets", v1alpha1.FromPod, theProbe(oldAt, noUDP), "pod/address pod/stream pod/dns pod/name"},
		{"about to be deleted", v1alpha1.FromPod, theProbe(oldAt, deleted), ""},
	} {
		got, problems := targets(orders{
			origin: tt.origin, domain: "cluster.local", answered: true, named: true,
			view: view{migration: shrinkMigration(m), services: []*corev1.Service{tt.svc}},
		})
		var names []string
		for _, g := range got {
			names = append(names, g.Name)
		}
		if strings.Join(names, " ") != tt.want || len(problems) > 0 {
			t.Errorf("%s: probed are %v, want %s; %v", tt.name, names, tt.want, problems)
		}
	}
}

func TestTargetsBehindTheGate(t *testing.T) {
	o := orders{
		origin: v1alpha1.FromHost,
		domain: "k8s.example.",
		view:   view{migration: migration(), services: []*corev1.Service{theProbe(oldAt)}},
	}
	if got, _ := targets(o); len(got) != 0 {
		t.Errorf("nothing has answered, and probed are %v", lines(got))
	}
	o.answered = true
	if got, _ := targets(o); len(got) != 3 {
		t.Errorf("the name was not found, and probed are %v", lines(got))
	}
	o.named = true
	got, _ := targets(o)
	if len(got) != 5 || got[3].Address != "probe.replumb-system.svc.k8s.example." {
		t.Errorf("probed are %v", lines(got))
	}
}

func TestWantedTargets(t *testing.T) {
	m := migration(func(m *v1alpha1.Migration) {
		m.Spec.Proof.Rate = 20
		m.Spec.Proof.Probes = []v1alpha1.ProbeSpec{
			{Name: "shop", Kind: v1alpha1.RequestHTTP, Address: "http://shop.example/a?b=c", ExpectStatus: 204},
			{
				Name:    "tls",
				Kind:    v1alpha1.RequestHTTP,
				Address: "https://shop.example",
				Host:    "other.example",
				Rate:    3,
				From:    v1alpha1.FromHost,
			},
			{Name: "pods-only", Kind: v1alpha1.RequestTCP, Address: "db.shop:5432", From: v1alpha1.FromPod},
			{Name: "echo", Kind: v1alpha1.RequestUDP, Address: "192.0.2.1:7", Timeout: &metav1.Duration{Duration: time.Second}},
			{Name: "lines", Kind: v1alpha1.RequestStream, Address: "192.0.2.1:7", From: v1alpha1.FromBoth},
			{Name: "names", Kind: v1alpha1.RequestDNS, Address: "shop.example"},
			{Name: "dns", Kind: v1alpha1.RequestDNS, Address: "shop.example"},
			{Name: "no-url", Kind: v1alpha1.RequestHTTP, Address: "shop.example:80"},
			{Name: "secret", Kind: v1alpha1.RequestHTTP, Address: "http://me:pass@shop.example"},
			{Name: "no-port", Kind: v1alpha1.RequestTCP, Address: "shop.example"},
			{Name: "odd", Kind: "Carrier", Address: "shop.example:1"},
			{Name: "metadata", Kind: v1alpha1.RequestHTTP, Address: "http://169.254.169.254/latest"},
			{Name: "mapped", Kind: v1alpha1.RequestTCP, Address: "[::ffff:127.0.0.1]:22"},
			{Name: "link", Kind: v1alpha1.RequestTCP, Address: "[fe80::1%eth0]:22"},
			{Name: "kubelet", Kind: v1alpha1.RequestHTTP, Address: "https://LocalHost.:10250/pods"},
			{Name: "flood", Kind: v1alpha1.RequestUDP, Address: "192.0.2.1:7", Rate: 990},
		}
	})
	got, problems := targets(orders{origin: v1alpha1.FromHost, view: view{migration: m}})
	want := []string{
		"host/shop http shop.example:80/a?b=c 20", "host/tls http shop.example:443/ 3", "host/echo udp 192.0.2.1:7 20",
		"host/lines stream 192.0.2.1:7 20", "host/names dns shop.example 20",
	}
	if !slices.Equal(lines(got), want) {
		t.Fatalf("got\n  %s", strings.Join(lines(got), "\n  "))
	}
	if got[1].Host != "other.example" || got[0].shown != "http://shop.example/a?b=c" || got[0].TLS || !got[1].TLS ||
		got[2].Timeout != probe.Duration(time.Second) {
		t.Errorf("targets %+v", got)
	}
	for i, name := range []string{"dns", "no-url", "secret", "no-port", "odd", "metadata", "mapped", "link", "kubelet", "flood"} {
		if i >= len(problems) || !strings.HasPrefix(problems[i], "probe "+name+" is not sent: ") {
			t.Errorf("problems %q", problems)
			break
		}
	}
}

// TestWantedTargetsAtAddressesThatGo ends what a user has asked to probe when its address is taken
// away, and no sooner.
func TestWantedTargetsAtAddressesThatGo(t *testing.T) {
	probes := func(m *v1alpha1.Migration) {
		m.Spec.ServiceCIDR = &v1alpha1.ServiceCIDRSpec{From: []string{"10.96.0.0/16"}, To: []string{"172.24.0.0/16"}}
		m.Spec.Proof.Probes = []v1alpha1.ProbeSpec{
			{Name: "old", Kind: v1alpha1.RequestTCP, Address: "10.96.0.5:80"},
			{Name: "new", Kind: v1alpha1.RequestHTTP, Address: "http://172.24.0.5/"},
			{Name: "pinned", Kind: v1alpha1.RequestTCP, Address: "10.96.0.7:80"},
			{Name: "else", Kind: v1alpha1.RequestTCP, Address: "192.0.2.1:80"},
		}
	}
	pinned, there, home := service("shop", "pin", "10.96.0.7"), service("shop", "cart", "172.24.0.5"), service("shop", "cart", "10.96.0.5")
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.Migration)
		cart   *corev1.Service
		want   string
	}{
		{"moved", func(*v1alpha1.Migration) {}, there, "old new pinned else"},
		{"old addresses go", final, there, "new pinned else"},
		{"on the way back", back, there, "old new pinned else"},
		{"back, and new addresses go", back, home, "old pinned else"},
	} {
		m := migration(probes, tt.change)
		got, problems := targets(
			orders{origin: v1alpha1.FromHost, view: view{migration: shrinkMigration(m), services: []*corev1.Service{pinned, tt.cart}}},
		)
		var names []string
		for _, g := range got {
			names = append(names, strings.TrimPrefix(g.Name, "host/"))
		}
		if strings.Join(names, " ") != tt.want || len(problems) > 0 {
			t.Errorf("%s: probed are %v, want %s; %v", tt.name, names, tt.want, problems)
		}
	}
}

func FuzzWanted(f *testing.F) {
	f.Add("HTTP", "http://[::1]:80/?")
	f.Add("HTTP", "https://a:99999")
	f.Add("TCP", ":1")
	f.Add("DNS", "a..b")
	f.Fuzz(func(t *testing.T, kind, address string) {
		p := &v1alpha1.ProbeSpec{Name: "x", Kind: v1alpha1.RequestKind(kind), Address: address}
		got, err := wanted(p, 5)
		if err != nil {
			return
		}
		if _, err := (probe.Config{Targets: []probe.Target{got.Target}}).Resolve(""); err != nil {
			t.Errorf("%q: %v", address, err)
		}
	})
}

func TestMovers(t *testing.T) {
	bridgeOf := func(name string, change ...func(*corev1.Service)) *corev1.Service {
		b := service(
			"shop",
			bridge.Name(name, types.UID("uid-"+name)),
			"10.96.9.9",
			append([]func(*corev1.Service){role(v1alpha1.RoleBridge), touched}, change...)...)
		b.Annotations[v1alpha1.AnnotationServiceUID] = "uid-" + name
		return b
	}
	udp := func(svc *corev1.Service) { svc.Spec.Ports = svc.Spec.Ports[2:] }
	note := func(key, value string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Annotations[key] = value }
	}
	elsewhere := func(svc *corev1.Service) { svc.Namespace = "tenant" }
	renamed := func(svc *corev1.Service) { svc.Name = "cart-bridge-12345" }
	tests := []struct {
		name      string
		migration *v1alpha1.Migration
		services  []*corev1.Service
		// want is at, other, left, port
		want string
	}{
		{"no bridge", migration(), []*corev1.Service{service("shop", "cart", oldAt)}, ""},
		{"bridged", migration(), []*corev1.Service{service("shop", "cart", oldAt), bridgeOf("cart")}, oldAt + " " + newAt + " - 80"},
		{"on its way", migration(), []*corev1.Service{service("shop", "cart", "", touched), bridgeOf("cart")}, "- " + newAt + " - 80"},
		{
			"moved", migration(),
			[]*corev1.Service{service("shop", "cart", newAt, movedAt("1")), bridgeOf("cart")},
			newAt + " " + oldAt + " " + oldAt + " 80",
		},
		{
			"back", migration(back),
			[]*corev1.Service{service("shop", "cart", oldAt, movedAt("2")), bridgeOf("cart")},
			oldAt + " " + newAt + " " + newAt + " 80",
		},
		{
			"bridge goes", migration(back),
			[]*corev1.Service{service("shop", "cart", oldAt, movedAt("2")), bridgeOf("cart", deleted)},
			oldAt + " - - 80",
		},
		{
			"finish", migration(final),
			[]*corev1.Service{service("shop", "cart", newAt, movedAt("1")), bridgeOf("cart")},
			newAt + " - - 80",
		},
		{
			"datagrams only", migration(),
			[]*corev1.Service{service("shop", "cart", newAt, movedAt("1"), udp), bridgeOf("cart")},
			newAt + " " + oldAt + " " + oldAt + " 0",
		},
		{"deleted", migration(), []*corev1.Service{service("shop", "cart", newAt, movedAt("1"), deleted), bridgeOf("cart")}, ""},
		{"a bridge by another name", migration(), []*corev1.Service{service("shop", "cart", oldAt), bridgeOf("cart", renamed)}, ""},
		{"a bridge in another namespace", migration(), []*corev1.Service{service("shop", "cart", oldAt), bridgeOf("cart", elsewhere)}, ""},
		{
			"a second bridge, of a tenant", migration(),
			[]*corev1.Service{service("shop", "cart", oldAt), bridgeOf("cart"), bridgeOf("cart", elsewhere)},
			oldAt + " " + newAt + " - 80",
		},
		{
			"a bridge to an address outside",
			migration(),
			[]*corev1.Service{
				service("shop", "cart", newAt, movedAt("1")),
				bridgeOf("cart", note(v1alpha1.AnnotationOldIP, "169.254.169.254")),
			},
			newAt + " - - 80",
		},
		{"at an address outside", migration(), []*corev1.Service{service("shop", "cart", "192.0.2.9", movedAt("1")), bridgeOf("cart")}, ""},
	}
	text := func(a netip.Addr) string {
		if !a.IsValid() {
			return "-"
		}
		return a.String()
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			for _, m := range movers(view{migration: tt.migration, services: tt.services, ranges: moveRanges()}) {
				if m.key.Name == "cart" {
					got = fmt.Sprintf("%s %s %s %d", text(m.at), text(m.other), text(m.left()), m.port)
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
