package lab

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestMadeByClusterAPI: the lab begins without machines, is called where those will be whatever their number, and leaves a network to the lab that
// manages it.
func TestMadeByClusterAPI(t *testing.T) {
	topology := Default()
	topology.Installer, topology.CNI = ByClusterAPI, Calico
	topology.Nodes = []ProxyMode{IPTables}
	topology = topology.withDefaults()
	l := newLab(topology)
	if len(l.Members) != 0 || l.Balancers().endpoint().String() != "172.30.0.1:6443" {
		t.Errorf("there are %v, who call %s", l.Members, l.Balancers().endpoint())
	}
	for _, valid := range []Topology{topology, topology.management()} {
		if err := valid.Validate(); err != nil {
			t.Error(err)
		}
	}
	if err := topology.management().fits(l, []*Lab{l}); err != nil {
		t.Error(err)
	}
	_, _, worker := l.Workers().place(Joining{})
	_, plane := l.ControlPlaneNodes().place("")
	for _, err := range []error{worker, plane} {
		if err == nil || !strings.Contains(err.Error(), "hint: scale a MachineDeployment") {
			t.Errorf("another machine by hand: %v", err)
		}
	}
	topology.Name = "sixteen-letters1"
	if err := topology.Validate(); err == nil || !strings.Contains(err.Error(), "up to 15") {
		t.Errorf("with a name of 16 letters it is %v", err)
	}
	topology.Name, topology.CNI = "lab", HostLocal
	if err := topology.Validate(); err == nil || !strings.Contains(err.Error(), "made by Cluster API has flannel or Calico") {
		t.Errorf("without a network of pods it is %v", err)
	}
}

// TestObjects of a cluster are whole, and bring what kubelets and kube-proxies of a lab need.
func TestObjects(t *testing.T) {
	topology := Default()
	topology.Installer, topology.CNI = ByClusterAPI, Calico
	objects, err := newLab(topology).ClusterAPI().objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(objects), "\n---\n") {
		var object struct {
			Kind string `json:"kind"`
			Spec struct {
				KubeadmConfigSpec struct {
					Files []struct {
						Content string `json:"content"`
					} `json:"files"`
				} `json:"kubeadmConfigSpec"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind == "" {
			t.Errorf("%s: %v", document, err)
		}
		if object.Kind != "KubeadmControlPlane" {
			continue
		}
		if content := object.Spec.KubeadmConfigSpec.Files[0].Content; !strings.HasPrefix(content, "---\n") || !strings.Contains(content, "maxPerCore: 0") {
			t.Errorf("it appends %q", content)
		}
	}
}

// TestAdapted: definitions that are for a Service and somebody who fills in certificates lead to an address beside the API server.
func TestAdapted(t *testing.T) {
	c := controllers()[2]
	for name, document := range map[string]string{
		"webhook": `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: x},
			webhooks: [{name: a.b.c, failurePolicy: Fail, clientConfig: {service: {name: webhook-service, path: /validate-it}}}]}`,
		"kind": `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: x}, spec: {group: g}}`,
	} {
		adapted, err := c.adapted([]byte(document), []byte("authority"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range map[string][]string{
			"webhook": {"url: https://127.0.0.1:9443/validate-it", "caBundle: YXV0aG9yaXR5", "failurePolicy: Fail", "name: cluster-api-control-plane"},
			"kind":    {"url: https://127.0.0.1:9443/convert", "cluster.x-k8s.io/v1beta2: v1beta2", "group: g"},
		}[name] {
			if !strings.Contains(string(adapted), want) {
				t.Errorf("%s: there is no %q in\n%s", name, want, adapted)
			}
		}
		if strings.Contains(string(adapted), "service:") {
			t.Errorf("%s leads to a Service:\n%s", name, adapted)
		}
	}
}
