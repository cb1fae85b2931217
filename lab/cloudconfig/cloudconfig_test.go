package cloudconfig

import (
	"strings"
	"testing"
)

// written is what the provider writes for a worker, without most of its files.
const written = `## template: jinja
#cloud-config

write_files:
-   path: /etc/replumb-lab/components.yaml
    owner: root:root
    permissions: '0640'
    content: |
      ---
      kind: KubeletConfiguration
-   path: /run/kubeadm/kubeadm-join-config.yaml
    owner: root:root
    permissions: '0640'
    content: |
      ---
      kind: JoinConfiguration
-   path: /run/cluster-api/placeholder
    owner: root:root
    permissions: '0640'
    content: "This placeholder file is used to create the /run/cluster-api sub directory"
runcmd:
  - "echo \"before\""
  - kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  && echo success > /run/cluster-api/bootstrap-success.complete
`

func TestParse(t *testing.T) {
	c, err := Parse([]byte(written))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Files) != 3 || c.Files[1].Content != "---\nkind: JoinConfiguration\n" {
		t.Errorf("the files are %+v", c.Files)
	}
	want := `#!/bin/sh
chmod 0640 '/etc/replumb-lab/components.yaml'
chmod 0640 '/run/kubeadm/kubeadm-join-config.yaml'
chmod 0640 '/run/cluster-api/placeholder'
echo "before"
kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  && echo success > /run/cluster-api/bootstrap-success.complete
`
	if got := string(c.Script()); got != want {
		t.Errorf("the script is\n%s", got)
	}
}

// TestParseRefuses: what machines of labs do not do is no machine that lacks it.
func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ from, to, says string }{
		"Ignition":         {"#cloud-config\n", "{}\n", "no cloud-config"},
		"another part":     {"runcmd:", "ntp: {enabled: true}\nruncmd:", `unknown field "ntp"`},
		"a file to append": {"    owner: root:root\n", "    append: true\n", `unknown field "append"`},
		"an encoded file":  {"    owner: root:root\n", "    encoding: \"base64\"\n", `unknown field "encoding"`},
		"another owner":    {"owner: root:root", "owner: core", "is to be of core"},
		"a template":       {"kind: JoinConfiguration", "name: {{ ds.meta_data.local_hostname }}", "is a template"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(strings.Replace(written, c.from, c.to, 1)))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v, want one that says %q", err, c.says)
			}
		})
	}
}
