package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// What people know the shop by, and by what its mirror is tried out.
const (
	shopHost  = "shop." + lab.Zone
	blogHost  = "blog." + lab.Zone
	aliasHost = "shop-mirror." + lab.Zone
	ownedHost = "owned." + lab.Zone

	mirrorName  = "mirror"
	newPodRange = "10.245.0.0/16"
	// allPodRanges has both the range that the lab is born with and the new one.
	allPodRanges = "10.244.0.0/15"
)

// TestMirror has a second cluster serve a shop while the first one's network is replaced: by the files that the runbooks show, run
// where people outside are, who call by name all the time, looking it up each time or as often as its time to live says. Then the
// first one serves again, and the second is taken down. Nothing may be lost. The control is the same replacement, backwards, without
// a mirror.
func TestMirror(t *testing.T) { mirrorRound(t, lab.ByLab) }

// TestKubeadmMirror is that round with two clusters that kubeadm has made.
func TestKubeadmMirror(t *testing.T) { mirrorRound(t, lab.Kubeadm) }

func mirrorRound(t *testing.T, installer lab.Installer) {
	t.Helper()
	before := labtest.HostState(t)
	r := mirrored(t, installer)
	r.populate()
	r.requireOwnedIsLeftAlone()
	s := r.callers()
	file := r.file()

	round := s.during(t, "the whole round", func() {
		for _, at := range []string{"copy/objects", "record/shop." + lab.Zone + "/A/narrow", "handover/"} {
			r.killed(file, at)
		}
		r.replumb("apply", "-f", file)
		r.requireParity()
		r.requireServes(r.right)
		r.switchNetwork()
		r.replumb("finish", mirrorName, "--yes")
		r.requireServes(r.left)
		r.requireRanOnce()
		if _, err := lab.Down(t.Context(), rightName); err != nil {
			t.Fatal(err)
		}
	})
	round.requireNothingLost(t, traffic.Outside)
	all := round.stats(t, traffic.Outside)
	t.Logf("%d of %d requests were lost", all.Failed, all.Sent)
	if all.Sent < minOutside {
		t.Errorf("only %d requests were made, which prove little; want %d", all.Sent, minOutside)
	}
	if got := onBastion(t, r.left, "dig", "+short", ownedHost); got != "192.0.2.1" {
		t.Errorf("the record of another owner is %s", got)
	}
	if t.Failed() {
		return
	}
	r.requireSwitchLoses(s)
	s.watch.Stop()

	if _, err := lab.Down(t.Context(), leftName); err != nil {
		t.Fatal(err)
	}
	labtest.RequireNothingLeft(t, leftName)
	labtest.RequireUnchanged(t, before)
}

// requireOwnedIsLeftAlone fails the test unless a name that an external-dns owns blocks, and stays as it is.
func (r *pair) requireOwnedIsLeftAlone() {
	t := r.t
	t.Helper()
	m := r.migration()
	d := &m.Spec.Mirror.Redirect
	d.Names = []v1alpha1.RedirectName{
		{Name: ownedHost, From: []string{"192.0.2.1"}, Probe: &v1alpha1.RedirectProbe{Mode: v1alpha1.ProbeOff}},
	}
	out, err := r.command("apply", "-f", r.write("owned.yaml", m)).CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(string(out), "theirs") {
		t.Errorf("apply with the name of another owner: %v\n%s", err, out)
	}
	if got := onBastion(t, r.left, "dig", "+short", ownedHost); got != "192.0.2.1" {
		t.Errorf("it changed the record to %s", got)
	}
}

// requireServes fails the test unless names lead to a lab, and the mailer runs there and nowhere else.
func (r *pair) requireServes(l *lab.Lab) {
	t := r.t
	t.Helper()
	for _, host := range []string{shopHost, blogHost} {
		if got, want := onBastion(t, r.left, "dig", "+short", host), balancer(l); got != want {
			t.Errorf("%s leads to %s, want %s", host, got, want)
		}
	}
	if _, err := curl(t, r.left, "https://"+shopHost+"/"); err != nil {
		t.Errorf("over TLS: %v", err)
	}
	for _, each := range []*lab.Lab{r.left, r.right} {
		pods, err := each.Client().
			CoreV1().
			Pods(shopNamespace).
			List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=mailer"})
		r.must(err)
		if serves := each == l; (len(pods.Items) > 0) != serves {
			t.Errorf("lab %s has %d mailers, and serves: %v", each.Topology.Name, len(pods.Items), serves)
		}
		job, err := each.Client().BatchV1().CronJobs(shopNamespace).Get(t.Context(), "nightly", metav1.GetOptions{})
		r.must(err)
		if serves := each == l; ptr.Deref(job.Spec.Suspend, false) == serves {
			t.Errorf("in lab %s the nightly job is suspended: %v", each.Topology.Name, job.Spec.Suspend)
		}
	}
}

// requireRanOnce fails the test if the nightly job ran in both labs for one minute: a Job is named after it.
func (r *pair) requireRanOnce() {
	t := r.t
	t.Helper()
	ran := map[string]string{}
	for _, l := range []*lab.Lab{r.left, r.right} {
		jobs, err := l.Client().BatchV1().Jobs(shopNamespace).List(t.Context(), metav1.ListOptions{})
		r.must(err)
		for i := range jobs.Items {
			name := jobs.Items[i].Name
			if other := ran[name]; other != "" {
				t.Errorf("%s ran in lab %s and in lab %s", name, other, l.Topology.Name)
			}
			ran[name] = l.Topology.Name
		}
	}
	t.Logf("%d minutes of the nightly job ran in one lab each", len(ran))
}

// requireParity compares both namespaces by kubectl, without a line of what copied them: the same names of the same kinds, and the
// same data and pod templates but for the registry.
func (r *pair) requireParity() {
	t := r.t
	t.Helper()
	read := func(l *lab.Lab) map[string]string {
		kubectl := exec.CommandContext(t.Context(), l.Kubectl(), "--kubeconfig", l.Kubeconfig(), "get", "-n", shopNamespace, "-o", "json",
			"deployments,cronjobs,services,ingresses,configmaps,secrets,serviceaccounts")
		out, err := kubectl.Output()
		r.must(err)
		var list struct{ Items []map[string]any }
		r.must(json.Unmarshal(out, &list))
		all := map[string]string{}
		for _, o := range list.Items {
			meta := o["metadata"].(map[string]any)
			s, _ := o["spec"].(map[string]any)
			for _, own := range []string{"clusterIP", "clusterIPs", "replicas", "suspend"} { // each cluster's own, and singletons'
				delete(s, own)
			}
			body, err := json.Marshal([]any{s, o["data"], o["type"]})
			r.must(err)
			all[fmt.Sprintf("%s/%s", o["kind"], meta["name"])] = strings.ReplaceAll(string(body), l.Registry().Host, "REGISTRY")
		}
		return all
	}
	source, target := read(r.left), read(r.right)
	if a, b := slices.Sorted(maps.Keys(source)), slices.Sorted(maps.Keys(target)); !slices.Equal(a, b) {
		t.Errorf("the source has %v, the target %v", a, b)
	}
	for name, want := range source {
		switch {
		case name == "Secret/pull", name == "ConfigMap/kube-root-ca.crt", strings.HasPrefix(name, "Ingress/shop"):
			continue // credentials and authority of the other cluster; the alias has a rule there
		case target[name] != want:
			t.Errorf("%s differs:\nsource %s\ntarget %s", name, want, target[name])
		}
	}
	t.Logf("%d objects of the source are in the target", len(source))
	if _, err := curl(t, r.left, "https://"+aliasHost+"/"); err != nil {
		t.Errorf("by its alias: %v", err)
	}
}

// switchNetwork replaces flannel by Calico in the cluster that has no traffic.
func (r *pair) switchNetwork() {
	t := r.t
	t.Helper()
	file := r.networkFile(false)
	if r.left.Topology.Installer == lab.Kubeadm { // whose ConfigMap says what its kube-proxies know
		(&byThePage{T: t, l: r.left}).tellProxies(r.left.Topology.PodCIDR.String(), allPodRanges)
	} else {
		r.requireProxyIsSeen()
		r.must(r.left.Workers().RestartProxies(t.Context(), netip.MustParsePrefix(allPodRanges)))
		file = r.networkFile(true)
	}
	r.replumb("apply", "-f", file)
	requireAddressesIn(t, r.left, shopNamespace, netip.MustParsePrefix(newPodRange))
	for _, node := range r.left.NodeNames() {
		if out, err := r.left.Exec(t.Context(), node, "ip", "-br", "link"); err != nil || strings.Contains(string(out), "flannel") {
			t.Errorf("%s has (%v):\n%s", node, err, out)
		}
	}
}

// requireProxyIsSeen is the control of the switch: kube-proxy, which no API of the lab shows, still takes the new range of pods for
// addresses outside. Without the operator's word nothing begins; with one that is not true, what is broken is seen, and the
// switch does not count as done.
func (r *pair) requireProxyIsSeen() {
	t := r.t
	t.Helper()
	for _, tt := range []struct {
		vouched bool
		exit    int
		says    string
	}{{false, 3, "RP5203"}, {true, 1, "service-cross-node"}} {
		out, err := r.command("apply", "-f", r.networkFile(tt.vouched)).CombinedOutput()
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) || exit.ExitCode() != tt.exit || !strings.Contains(string(out), tt.says) {
			t.Errorf("apply with a kube-proxy that takes new pods for clients, vouched %v: %v, want exit code %d and %s\n%s",
				tt.vouched, err, tt.exit, tt.says, tailOf(out))
		}
	}
}

// networkFile is the example, with what is different in every lab. vouched says of kube-proxy that it knows the new range.
func (r *pair) networkFile(vouched bool) string {
	r.t.Helper()
	manifests, err := lab.CalicoManifests(r.left, netip.MustParsePrefix(newPodRange))
	r.must(err)
	path := filepath.Join(r.dir, "calico.yaml")
	r.must(os.WriteFile(path, manifests, 0o600))
	m := r.example("cni/flannel-to-calico.yaml")
	n := m.Spec.CNI
	n.Manifests, n.PodCIDR = []string{path}, newPodRange
	m.Spec.Image, m.Spec.Proof.Agents = workload.ReplumbImage, v1alpha1.AgentsDisabled
	n.Traffic.Window = &metav1.Duration{Duration: 10 * time.Second}
	n.Traffic.Ignore = []string{balancer(r.left) + "/32"} // which asks nodes for their health all the time
	n.Vouch = v1alpha1.CNIVouchSpec{KubeProxy: vouched, Quiet: n.Traffic.Ignore}
	return r.write("cni.yaml", m)
}

// requireSwitchLoses replaces the network once more, back to flannel, while the cluster serves: without a mirror that has to be lost
// which comes while pods have none.
func (r *pair) requireSwitchLoses(s *shop) {
	r.t.Helper()
	control := s.during(r.t, "the control", func() { r.replumb("rollback", "flannel-to-calico", "--yes") })
	stats := control.stats(r.t, traffic.Outside)
	if stats.Failed == 0 {
		r.t.Errorf("none of %d requests was lost without a mirror: the test proves nothing", stats.Sent)
	}
	r.t.Logf("control: %d of %d requests were lost", stats.Failed, stats.Sent)
}
