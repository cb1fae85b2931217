package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/lab/lab"
)

// TestKubeadmTrouble has replumb pass the gates of a cluster that kubeadm has made where it cannot: a manifest that somebody else manages, a full
// disk, a kubelet that does not come back. Each time the run ends with the node, the file and the reason, and everything is as it was. Once the
// cause is removed, the same command carries on.
func TestKubeadmTrouble(t *testing.T) {
	topology := named("e2e-kubeadm-trouble")
	topology.Installer, topology.Nodes = lab.Kubeadm, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	l := bringUp(t, topology)
	k := &byThePage{T: t, l: l}
	file := k.byItself(writeSpec(t, "whole", `
  serviceCIDR:
    to: [%s]
    gateWait: 3m
    apiServers: [%s]
`, newRange, strings.Join(l.APIServers(), ", ")))
	before := k.written()

	const manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml"
	k.must("cp1", "cp -a "+manifest+" /root/ && (echo '# managed by Ansible'; cat /root/kube-apiserver.yaml) > /root/theirs && cp /root/theirs "+manifest)
	k.refused(file, "node cp1", manifest, `the comment "# managed by Ansible"`)
	k.must("cp1", "cp -a /root/kube-apiserver.yaml "+manifest)
	k.requireWritten(before)

	const certificate = "openssl x509 -noout -fingerprint -in /etc/kubernetes/pki/apiserver.crt"
	was := k.must("cp1", certificate)
	k.must("cp1", `cp -a /etc/kubernetes /root/kubernetes && mount -t tmpfs -o mode=755,size=1m tmpfs /etc/kubernetes
		cp -a /root/kubernetes/. /etc/kubernetes/ && ! dd if=/dev/zero of=/etc/kubernetes/full bs=512 2>/dev/null`)
	k.refused(file, "node cp1", "apiserver.crt", "no space left on device")
	if is := k.must("cp1", certificate); is != was {
		t.Errorf("the certificate on the full disk is %s, and was %s", is, was)
	}
	k.must("cp1", "umount -l /etc/kubernetes")

	const kubelet = "/usr/local/bin/kubelet"
	k.must("node1", "mv "+kubelet+" "+kubelet+".real && cat > "+kubelet+` <<'END' && chmod 755 `+kubelet+`
#!/bin/bash
if grep -q `+newDNS+` /var/lib/kubelet/config.yaml; then exit 1; fi
exec -a kubelet `+kubelet+`.real "$@"
END`)
	k.refused(file, "node node1", "the kubelet has not started again", "/var/lib/kubelet/config.yaml is as it was before, and it runs again")
	if config := k.must("node1", "cat /var/lib/kubelet/config.yaml"); config != before["node1:/var/lib/kubelet/config.yaml"] {
		t.Errorf("the kubelet's configuration is\n%s", config)
	}
	if config := k.must("node2", "cat /var/lib/kubelet/config.yaml"); config != before["node2:/var/lib/kubelet/config.yaml"] {
		t.Errorf("the kubelet of node2 was changed after that of node1 had failed:\n%s", config)
	}
	k.must("node1", "mv "+kubelet+".real "+kubelet)

	k.alone(attendAs(t, operator{lab: l}, 0, "apply", "-f", file))
	requireClusterOn(t, l, newRange)
	k.alone(attendAs(t, operator{lab: l}, 0, "rollback", "whole", "--yes"))
	k.requireWritten(before)
	requireNoTrace(t, l)
}

// must runs a script on a machine, and returns what it prints.
func (k *byThePage) must(on, script string) string {
	k.Helper()
	out, err := k.l.Shell(k.Context(), on, script)
	must(k.T, err)
	return string(out)
}

// refused fails the test unless apply ends by itself, and says each of these.
func (k *byThePage) refused(file string, says ...string) {
	k.Helper()
	cmd := command(k.T, "replumb", "apply", "-f", file, "--kubeconfig", k.l.Kubeconfig())
	out, err := cmd.CombinedOutput()
	lines := slices.Collect(strings.Lines(string(out)))
	for _, line := range lines[max(0, len(lines)-6):] {
		k.Log(strings.TrimRight(line, "\n"))
	}
	if err == nil || cmd.ProcessState.ExitCode() != 1 {
		k.Fatalf("apply ended with exit code %d, want 1", cmd.ProcessState.ExitCode())
	}
	last := strings.Join(lines[max(0, len(lines)-6):], "")
	for _, want := range append(says, "hint: ") {
		if !strings.Contains(last, want) {
			k.Errorf("it does not say %q", want)
		}
	}
}
