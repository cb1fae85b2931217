package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestKubeadmServices moves the whole Service range of a cluster that kubeadm has made, killed on the way, and back, while clients call as
// in other tests. At each gate the commands of docs/platforms/kubeadm.md are run as they stand. With one control plane the API is away
// while its server restarts; nothing else may be lost. Afterwards certificates are renewed and a worker joins, and nothing brings the old
// range back.
func TestKubeadmServices(t *testing.T) {
	topology := named("e2e-kubeadm")
	topology.Installer, topology.Nodes = lab.Kubeadm, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	l := bringUp(t, topology)
	s := wholeUnderTraffic(t, l)
	k := &byThePage{T: t, l: l}
	file := writeWhole(t, l, "whole", drain)

	moved := s.during(t, "the whole move", func() {
		for _, moment := range []func(engine.Event) bool{
			eventOf(engine.StepStarted, "hop/kube-system/kube-dns"), eventOf(engine.StepStarted, "hop/default/kubernetes"),
		} {
			o := k.operator(newRange)
			o.killAt = moment
			if _, code, _ := o.attend(t, command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig())); code != -1 {
				t.Fatalf("apply ended with exit code %d before the event came", code)
			}
		}
		attendAs(t, k.operator(newRange), 0, "apply", "-f", file)
	})
	moved.requireNothingLost(t, butAPI)
	requireWhole(t, l, newRange)
	k.nothingBringsBack()

	back := s.during(t, "the whole rollback", func() { attendAs(t, k.operator(oldRange), 0, "rollback", "whole", "--yes") })
	back.requireNothingLost(t, butAPI)
	requireWhole(t, l, oldRange)
	requireNoTrace(t, l)
	requireNaiveLoses(t, l)
}

// butAPI are all calls but those of API servers, of which there is one, and it restarts.
func butAPI(s traffic.Source) bool {
	return !slices.Contains([]traffic.Via{traffic.ByAPIName, traffic.ByAPIOldAddress, traffic.ByAPINewAddress, traffic.ByAPIKept}, s.Via)
}

// byThePage does at gates what the page about kubeadm says, by its own commands.
type byThePage struct {
	*testing.T
	l     *lab.Lab
	begun bool
}

func (k *byThePage) operator(to string) operator {
	o := tooling(k.l, to)
	o.instead = map[string]func(context.Context) error{
		"gate/certificates": k.certificates,
		"gate/kubelets":     func(ctx context.Context) error { return k.kubelets(ctx, to) },
		"gate/api-servers":  func(ctx context.Context) error { return k.apiServers(ctx, to) },
	}
	return o
}

// blocks are the commands below a heading of the page, each run of indented lines by itself.
func (k *byThePage) blocks(heading string) (all []string) {
	k.Helper()
	root, err := component.SourceRoot()
	must(k.T, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "platforms", "kubeadm.md"))
	must(k.T, err)
	_, below, found := strings.Cut(string(page), "\n"+heading+"\n")
	if !found {
		k.Fatalf("the page has no %q", heading)
	}
	below, _, _ = strings.Cut(below, "\n#")
	inside := false
	for line := range strings.Lines(below) {
		code, indented := strings.CutPrefix(line, "    ")
		switch {
		case !indented:
			inside = false
		case inside:
			all[len(all)-1] += code
		default:
			all, inside = append(all, code), true
		}
	}
	return all
}

// run has commands of the page run on a machine. An edit is done by sed, in the place of a person.
func (k *byThePage) run(ctx context.Context, on, commands, edit string) error {
	address := strings.TrimSuffix(k.address(ctx, on), "\n")
	commands = strings.ReplaceAll(commands, "192.0.2.11", address)
	_, err := k.l.Shell(ctx, on, commands, "KUBECONFIG=/etc/kubernetes/admin.conf", "KUBE_EDITOR=sed -i '"+edit+"'") // which a shell runs
	return err
}

func (k *byThePage) address(ctx context.Context, on string) string {
	out, err := k.l.Shell(ctx, on, "ip -4 -o address show eth0 | sed 's,.* inet ,,; s,/.*,,'")
	must(k.T, err)
	return string(out)
}

// begin makes the copies that the page begins with, once.
func (k *byThePage) begin(ctx context.Context) error {
	if k.begun {
		return nil
	}
	k.begun = true
	for _, on := range k.l.ControlPlanes() {
		if err := k.run(ctx, on, k.blocks("## Service range")[0], ""); err != nil {
			return err
		}
	}
	return nil
}

func (k *byThePage) certificates(ctx context.Context) error {
	if err := k.begin(ctx); err != nil {
		return err
	}
	blocks, first := k.blocks("### Gate: certificates"), k.l.ControlPlanes()[0]
	names := fmt.Sprintf(`s/^\( *\)- localhost$/&\n\1- %s\n\1- %s/`, newAPI, oldAPI)
	if err := k.run(ctx, first, blocks[0], names); err != nil {
		return err
	}
	for _, on := range k.l.ControlPlanes() {
		if err := k.run(ctx, on, blocks[1], ""); err != nil {
			return err
		}
	}
	return nil
}

func (k *byThePage) kubelets(ctx context.Context, to string) error {
	was, is := oldDNS, newDNS
	if to == oldRange {
		was, is = is, was
	}
	blocks := k.blocks("### Gate: kubelets")
	if err := k.run(ctx, k.l.ControlPlanes()[0], blocks[0], "s/"+was+"$/"+is+"/"); err != nil {
		return err
	}
	for _, on := range slices.Concat(k.l.ControlPlanes(), k.l.NodeNames()) {
		if err := k.run(ctx, on, blocks[1], ""); err != nil {
			return err
		}
	}
	return nil
}

func (k *byThePage) apiServers(ctx context.Context, to string) error {
	was := oldRange
	blocks := k.blocks("### Gate: API servers")
	restart := blocks[0]
	if to == oldRange { // the undo, and the same wait
		was = newRange
		_, wait, _ := strings.Cut(restart, "done\n")
		restart = "cp -a /root/before/manifests/kube-{apiserver,controller-manager}.yaml /etc/kubernetes/manifests/\n" +
			strings.ReplaceAll(wait, newRange, oldRange)
	}
	const edit = "kubectl -n kube-system edit configmap kubeadm-config"
	if err := k.run(ctx, k.l.ControlPlanes()[0], edit, "s,serviceSubnet:.*"+was+",serviceSubnet: "+to+","); err != nil {
		return err
	}
	for _, on := range k.l.ControlPlanes() {
		if err := k.run(ctx, on, restart, ""); err != nil {
			return err
		}
	}
	return nil
}

// nothingBringsBack does what an operator does next, and fails the test if the old range comes back with it.
func (k *byThePage) nothingBringsBack() {
	k.Helper()
	for _, on := range k.l.ControlPlanes() {
		_, err := k.l.Kubeadm(k.Context(), on, "certs", "renew", "all")
		must(k.T, err)
		out, err := k.l.Shell(k.Context(), on, "openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -ext subjectAltName")
		must(k.T, err)
		for _, address := range []string{oldAPI, newAPI} {
			if !strings.Contains(string(out), address) {
				k.Errorf("the renewed certificate of %s does not name %s: %s", on, address, out)
			}
		}
		out, err = k.l.Kubeadm(k.Context(), on, "upgrade", "diff", "v"+k.l.Kubernetes())
		must(k.T, err)
		if strings.Contains(string(out), oldRange) {
			k.Errorf("an upgrade would bring the old range back on %s:\n%s", on, out)
		}
	}
	joined, err := k.l.Workers().Add(k.Context(), lab.Joining{})
	must(k.T, err)
	out, err := k.l.Shell(k.Context(), joined.Name, "grep -A1 clusterDNS /var/lib/kubelet/config.yaml")
	must(k.T, err)
	if !strings.Contains(string(out), newDNS) {
		k.Errorf("node %s, which has joined, names to its pods: %s", joined.Name, out)
	}
	must(k.T, k.l.Workers().Reboot(k.Context(), joined.Name))
	requireWhole(k.T, k.l, newRange)
}

// upgradeToTheSame has kubeadm write anew all that an upgrade writes, of the version that the cluster has, and fails the test if that brings any of
// these back.
func (k *byThePage) upgradeToTheSame(gone ...string) {
	k.Helper()
	for i, on := range k.l.ControlPlanes() {
		upgrade := []string{"upgrade", "node", "--ignore-preflight-errors=all"}
		if i == 0 {
			upgrade = []string{"upgrade", "apply", "v" + k.l.Kubernetes(), "--yes", "--ignore-preflight-errors=all"}
		}
		_, err := k.l.Kubeadm(k.Context(), on, upgrade...)
		must(k.T, err)
	}
	for _, on := range k.l.NodeNames() {
		_, err := k.l.Kubeadm(k.Context(), on, "upgrade", "node", "--ignore-preflight-errors=all")
		must(k.T, err)
		_, err = k.l.Shell(k.Context(), on, "systemctl restart kubelet")
		must(k.T, err)
	}
	k.requireNowhere(gone...)
}
