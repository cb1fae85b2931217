package spec

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

const secret = "T0P53CRET"

func phases() []string { return []string{"check", "move"} }

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func exec(command ...string) v1alpha1.Action {
	return v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: command}}
}

// migration has the given fields, and a job.
func migration(s *v1alpha1.MigrationSpec) *v1alpha1.Migration {
	m := &v1alpha1.Migration{Spec: *s}
	m.APIVersion, m.Kind, m.Name = v1alpha1.GroupVersion.String(), "Migration", "m"
	m.Spec.ServiceCIDR = &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}
	return m
}

// full uses every common field.
func full() *v1alpha1.MigrationSpec {
	return &v1alpha1.MigrationSpec{
		Tiers: []v1alpha1.TierSpec{
			{Name: "test", Namespaces: []string{"test"}, Pause: duration(time.Minute)},
			{Name: "web", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"kind": "web"}}, Services: []string{"shop/cart"}},
			{Name: "core"},
		},
		DefaultTier: "web",
		TierLookup:  &v1alpha1.TierLookup{Action: exec("tiers", "")},
		Windows:     []v1alpha1.Window{{Days: []string{"Sat"}, Start: "22:00", End: "04:00", TimeZone: "Europe/Berlin"}},
		Hooks: []v1alpha1.Hook{
			{Name: "a", When: v1alpha1.BeforePhase, Of: []string{"move"}, Action: exec("a")},
			{
				Name: "b", When: v1alpha1.AfterBatch, Of: []string{"core", "cluster-services"},
				Action: v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: "https://example.com/" + secret}},
			},
		},
		Notify:           []v1alpha1.Notifier{{HTTPAction: v1alpha1.HTTPAction{URLFromEnv: "SLACK_URL"}, Format: v1alpha1.NotifySlack}},
		ImagePullSecrets: []string{"registry", "registry.example-2"},
		Proof: v1alpha1.ProofSpec{
			Agents: v1alpha1.AgentsEnabled, Wait: duration(time.Minute), Budget: 3, OnLoss: v1alpha1.OnLossRollback,
			Probes: []v1alpha1.ProbeSpec{
				{Name: "db", Kind: v1alpha1.RequestTCP, Address: "192.0.2.10:5432", From: v1alpha1.FromPod},
				{Name: "shop", Kind: v1alpha1.RequestHTTP, Address: "https://shop.example/health?t=" + secret, ExpectStatus: 204},
				{Name: "names", Kind: v1alpha1.RequestDNS, Address: "shop.example", Rate: 10, Timeout: duration(time.Second)},
			},
		},
	}
}

func defaulted(s *v1alpha1.MigrationSpec) *v1alpha1.MigrationSpec {
	m := migration(s)
	Default(m)
	return &m.Spec
}

func TestDefault(t *testing.T) {
	m := full()
	m.Windows[0].TimeZone = ""
	m = defaulted(m)
	got := []any{
		m.Batch.Size, m.Batch.Settle.Duration, m.TierLookup.Timeout.Duration, m.Windows[0].TimeZone, m.Hooks[0].Timeout.Duration,
		m.Hooks[0].OnFailure, m.Notify[0].Timeout.Duration, m.Notify[0].OnFailure, m.Notify[0].Format, m.Freeze, m.Backups, m.Desired,
	}
	want := []any{
		10, 2 * time.Second, 30 * time.Second, "UTC", 30 * time.Second,
		v1alpha1.FailureStop, 10 * time.Second, v1alpha1.FailureContinue, v1alpha1.NotifySlack, v1alpha1.FreezeEnforce,
		v1alpha1.BackupsRemove, v1alpha1.DesiredPlanned,
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d: got %v, want %v", i, got[i], want[i])
		}
	}
	again := m.DeepCopy()
	again.Batch.Settle = duration(0)
	again = defaulted(again)
	if again.Batch.Settle.Duration != 0 {
		t.Error("a settle time of nothing was replaced")
	}
}

func TestValidateAccepts(t *testing.T) {
	for name, m := range map[string]*v1alpha1.MigrationSpec{
		"nothing": {},
		"all":     full(),
		"the default tier without tiers": {
			DefaultTier: "default", Hooks: []v1alpha1.Hook{{Name: "a", When: v1alpha1.BeforeTier, Of: []string{"default"}, Action: exec("a")}},
		},
		"a tier that is called default": {Tiers: []v1alpha1.TierSpec{{Name: "default"}, {Name: "x"}}, DefaultTier: "default"},
		"a selector of everything":      {Tiers: []v1alpha1.TierSpec{{Name: "a", Selector: &metav1.LabelSelector{}}}},
		"one namespace in two tiers": {Tiers: []v1alpha1.TierSpec{
			{Name: "a", Namespaces: []string{"shop"}, Selector: &metav1.LabelSelector{}}, {Name: "b", Namespaces: []string{"shop"}},
		}},
		"the longest timeout": {TierLookup: &v1alpha1.TierLookup{
			Action: v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: "http://[::1]:80"}, Timeout: duration(10 * time.Minute)},
		}},
	} {
		whole := migration(m)
		Default(whole)
		if err := Refuse(Validate(whole, phases())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateNamesTheField(t *testing.T) {
	type spec = v1alpha1.MigrationSpec
	for _, tt := range []struct {
		field, problem string
		change         func(*spec)
	}{
		{"spec.batch.size", "501 is not within", func(m *spec) { m.Batch.Size = 501 }},
		{"spec.batch.size", "-1 is not within", func(m *spec) { m.Batch.Size = -1 }},
		{"spec.batch.settle", "negative", func(m *spec) { m.Batch.Settle = duration(-1) }},
		{"spec.tiers[0].name", "cannot be used", func(m *spec) { m.Tiers[0].Name = "Test" }},
		{"spec.tiers[2].name", `"test" is there twice`, func(m *spec) { m.Tiers[2].Name = "test" }},
		{"spec.tiers[2].name", "cluster's own", func(m *spec) { m.Tiers[2].Name = "cluster-services" }},
		{"spec.tiers[1].selector", "key: Invalid value", func(m *spec) { m.Tiers[1].Selector.MatchLabels = map[string]string{"?": "x"} }},
		{"spec.tiers[1].selector", "not a valid label selector operator", func(m *spec) {
			m.Tiers[1].Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
		}},
		{"spec.tiers[0].namespaces[1]", `"test-*" cannot be used`, func(m *spec) { m.Tiers[0].Namespaces = []string{"test", "test-*"} }},
		{"spec.tiers[1].services[1]", `"cart" cannot be used`, func(m *spec) { m.Tiers[1].Services = []string{"shop/cart", "cart"} }},
		{"spec.tiers[1].services[0]", `"a/b/c" cannot be used`, func(m *spec) { m.Tiers[1].Services = []string{"a/b/c"} }},
		{"spec.tiers[2].services[0]", "shop/cart is also spec.tiers[1].services[0]", func(m *spec) { m.Tiers[2].Services = []string{"shop/cart"} }},
		{"spec.tiers[0].pause", "negative", func(m *spec) { m.Tiers[0].Pause = duration(-time.Second) }},
		{"spec.defaultTier", `no tier "gold"`, func(m *spec) { m.DefaultTier = "gold" }},
		{"spec.defaultTier", `no tier "default"`, func(m *spec) { m.DefaultTier = "default" }},
		{"spec.defaultTier", `no tier "cluster-services"`, func(m *spec) { m.DefaultTier = "cluster-services" }},
		{"spec.tierLookup", "exactly one of exec and http", func(m *spec) { m.TierLookup.Exec = nil }},
		{"spec.tierLookup", "exactly one of exec and http", func(m *spec) { m.TierLookup.HTTP = &v1alpha1.HTTPAction{URL: "http://a"} }},
		{"spec.tierLookup.exec.command", "empty", func(m *spec) { m.TierLookup.Exec.Command = nil }},
		{"spec.tierLookup.exec.command", "empty", func(m *spec) { m.TierLookup.Exec.Command = []string{"", "x"} }},
		{"spec.tierLookup.timeout", "at most 10m", func(m *spec) { m.TierLookup.Timeout = duration(10*time.Minute + 1) }},
		{"spec.tierLookup.timeout", "longer than nothing", func(m *spec) { m.TierLookup.Timeout = duration(0) }},
		{"spec.windows[0].days[0]", `"Saturday"`, func(m *spec) { m.Windows[0].Days[0] = "Saturday" }},
		{"spec.windows[0].start", `"25:00"`, func(m *spec) { m.Windows[0].Start = "25:00" }},
		{"spec.windows[0].end", `""`, func(m *spec) { m.Windows[0].End = "" }},
		{"spec.windows[0].timeZone", `"Mars/Olympus"`, func(m *spec) { m.Windows[0].TimeZone = "Mars/Olympus" }},
		{"spec.hooks[1].name", "cannot be used", func(m *spec) { m.Hooks[1].Name = "" }},
		{"spec.hooks[1].name", "is there twice", func(m *spec) { m.Hooks[1].Name = "a" }},
		{"spec.hooks[0].when", `"Always" is not known`, func(m *spec) { m.Hooks[0].When = "Always" }},
		{"spec.hooks[0].of[0]", `no phase "web"`, func(m *spec) { m.Hooks[0].Of = []string{"web"} }},
		{"spec.hooks[1].of[1]", `no tier "move"`, func(m *spec) { m.Hooks[1].Of = []string{"web", "move"} }},
		{"spec.hooks[1].of[0]", `no tier "default"`, func(m *spec) { m.Hooks[1].Of = []string{"default"} }},
		{"spec.hooks[0].exec.command", "empty", func(m *spec) { m.Hooks[0].Exec.Command = nil }},
		{"spec.hooks[1].http", "exactly one of url and urlFromEnv", func(m *spec) { m.Hooks[1].HTTP.URLFromEnv = "X" }},
		{"spec.hooks[1].http.url", "not a URL", func(m *spec) { m.Hooks[1].HTTP.URL = "example.com/" + secret }},
		{"spec.hooks[1].http.url", "not a URL", func(m *spec) { m.Hooks[1].HTTP.URL = "http://a b/" + secret }},
		{"spec.hooks[1].http.url", "not a URL", func(m *spec) { m.Hooks[1].HTTP.URL = "https:///" + secret }},
		{"spec.hooks[1].timeout", "at most", func(m *spec) { m.Hooks[1].Timeout = duration(-1) }},
		{"spec.hooks[1].onFailure", `"Ignore" is not known`, func(m *spec) { m.Hooks[1].OnFailure = "Ignore" }},
		{"spec.notify[0]", "exactly one of url and urlFromEnv", func(m *spec) { m.Notify[0].URLFromEnv = "" }},
		{"spec.notify[0].urlFromEnv", "not the name", func(m *spec) { m.Notify[0].URLFromEnv = "https://a/" + secret }},
		{"spec.notify[0].format", `"Teams" is not known`, func(m *spec) { m.Notify[0].Format = "Teams" }},
		{"spec.notify[0].timeout", "at most", func(m *spec) { m.Notify[0].Timeout = duration(time.Hour) }},
		{"spec.notify[0].onFailure", "is not known", func(m *spec) { m.Notify[0].OnFailure = "x" }},
		{"spec.proof.agents", `"Maybe" is not known`, func(m *spec) { m.Proof.Agents = "Maybe" }},
		{"spec.proof.onLoss", `"Ignore" is not known`, func(m *spec) { m.Proof.OnLoss = "Ignore" }},
		{"spec.imagePullSecrets[1]", `"Reg" is not the name of a Secret`, func(m *spec) { m.ImagePullSecrets[1] = "Reg" }},
		{"spec.imagePullSecrets[0]", "is not the name of a Secret", func(m *spec) { m.ImagePullSecrets[0] = "" }},
		{"spec.imagePullSecrets[0]", "is not the name of a Secret", func(m *spec) { m.ImagePullSecrets[0] = "shop/registry" }},
		{"spec.imagePullSecrets[0]", "is not the name of a Secret", func(m *spec) { m.ImagePullSecrets[0] = "a..b" }},
		{"spec.imagePullSecrets[0]", "more than 253", func(m *spec) { m.ImagePullSecrets[0] = strings.Repeat("a", 254) }},
		{"spec.imagePullSecrets[1]", `"registry" is there twice`, func(m *spec) { m.ImagePullSecrets[1] = "registry" }},
		{"spec.imagePullSecrets", "at most 8", func(m *spec) { m.ImagePullSecrets = strings.Split("a b c d e f g h i", " ") }},
		{"spec.proof.rate", "1001 is not within", func(m *spec) { m.Proof.Rate = 1001 }},
		{"spec.proof.budget", "-1 is not within", func(m *spec) { m.Proof.Budget = -1 }},
		{"spec.proof.lateBudget", "-1 is not within", func(m *spec) { less := -1; m.Proof.LateBudget = &less }},
		{"spec.proof.soak", "negative", func(m *spec) { m.Proof.Soak = duration(-1) }},
		{"spec.proof.wait", "longer than nothing", func(m *spec) { m.Proof.Wait = duration(0) }},
		{"spec.proof.probes[1].name", `"db" is there twice`, func(m *spec) { m.Proof.Probes[1].Name = "db" }},
		{"spec.proof.probes[1].name", "replumb's own", func(m *spec) { m.Proof.Probes[1].Name = "old-address" }},
		{"spec.proof.probes[1].name", "replumb's own", func(m *spec) { m.Proof.Probes[1].Name = "single-name" }},
		{"spec.proof.probes[0].host", "kind HTTP only", func(m *spec) { m.Proof.Probes[0].Host = "shop.example" }},
		{"spec.proof.probes[1].host", "cannot be used", func(m *spec) { m.Proof.Probes[1].Host = "shop.example/x" }},
		{"spec.proof.probes[0].kind", `"Ping" is not known`, func(m *spec) { m.Proof.Probes[0].Kind = "Ping" }},
		{"spec.proof.probes[0].from", `"Moon" is not known`, func(m *spec) { m.Proof.Probes[0].From = "Moon" }},
		{"spec.proof.probes[0].address", "is not host:port", func(m *spec) { m.Proof.Probes[0].Address = "192.0.2.10" }},
		{"spec.proof.probes[0].address", "is not host:port", func(m *spec) { m.Proof.Probes[0].Address = "192.0.2.10:70000" }},
		{"spec.proof.probes[0].expectStatus", "kind HTTP only", func(m *spec) { m.Proof.Probes[0].ExpectStatus = 200 }},
		{"spec.proof.probes[1].expectStatus", "99 is not within", func(m *spec) { m.Proof.Probes[1].ExpectStatus = 99 }},
		{"spec.proof.probes[1].timeout", "at most", func(m *spec) { m.Proof.Probes[1].Timeout = duration(time.Hour) }},
		{"spec.proof.probes[1].address", "not a URL", func(m *spec) { m.Proof.Probes[1].Address = "shop.example/" + secret }},
		{"spec.proof.probes[2].address", "not a name", func(m *spec) { m.Proof.Probes[2].Address = "shop.example:53" }},
		{"spec.freeze", `"On" is not known`, func(m *spec) { m.Freeze = "On" }},
		{"spec.backups", `"Delete" is not known`, func(m *spec) { m.Backups = "Delete" }},
		{"spec.desired", `"Done" is not known`, func(m *spec) { m.Desired = "Done" }},
	} {
		t.Run(tt.field+" "+tt.problem, func(t *testing.T) {
			m := migration(full())
			Default(m)
			tt.change(&m.Spec)
			err := Refuse(Validate(m, phases()))
			var bad *Error
			if !errors.As(err, &bad) {
				t.Fatalf("got %v", err)
			}
			var many *Invalid
			if errors.As(err, &many) { // one mistake may have others follow from it
				if i := slices.IndexFunc(many.Errors, func(e *Error) bool { return e.Field == tt.field }); i >= 0 {
					bad = many.Errors[i]
				}
			}
			if bad.Field != tt.field || !strings.Contains(bad.Problem, tt.problem) || bad.Hint == "" {
				t.Errorf("got %+v", bad)
			}
			if strings.Contains(bad.Error()+bad.Hint, secret) {
				t.Errorf("tells the URL: %+v", bad)
			}
		})
	}
}

// TestActions has calls wherever a Migration may have them.
func TestActions(t *testing.T) {
	shell, dns := exec("shell"), exec("dns")
	m := &v1alpha1.MigrationSpec{
		TierLookup: &v1alpha1.TierLookup{Action: exec("tiers")},
		Hooks:      []v1alpha1.Hook{{Name: "a", Action: exec("a")}, {Name: "b", Action: exec("b")}},
		Notify:     []v1alpha1.Notifier{{HTTPAction: v1alpha1.HTTPAction{URLFromEnv: "TOLD"}}},
		Mirror:     &v1alpha1.MirrorSpec{},
		CNI:        &v1alpha1.CNISpec{},
	}
	m.CNI.Nodes.Replace = &shell
	m.Mirror.Redirect.Quiet = &dns
	var got []string
	for _, a := range Actions(m) {
		got = append(got, a.Field+" "+a.Exec.Command[0])
	}
	want := []string{
		"spec.mirror.redirect.quiet dns", "spec.cni.nodes.replace shell", "spec.tierLookup tiers", "spec.hooks[0] a", "spec.hooks[1] b",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
