package podnetwork

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestOf goes by DaemonSets cut from published manifests: what tells networks apart, and a Calico
// that gives pods nothing.
func TestOf(t *testing.T) {
	const calico = "{metadata: {name: calico-node, labels: {k8s-app: calico-node}}, spec: {template: {spec: {"
	for _, tt := range []struct {
		name, set string
		want      v1alpha1.CNIName
		program   v1alpha1.CNIName
	}{
		{
			name: "Calico, manifests/calico.yaml", want: v1alpha1.Calico, program: v1alpha1.Calico,
			set: calico + `initContainers: [{name: install-cni, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist}]}],
				containers: [{name: calico-node, image: "quay.io/calico/node:v3.32.0", env: [
				{name: CALICO_NETWORKING_BACKEND, valueFrom: {configMapKeyRef: {name: calico-config, key: calico_backend}}}]}]}}}}`,
		},
		{
			name: "Calico without a tunnel, by pkg/render/node.go of tigera/operator", want: v1alpha1.Calico, program: v1alpha1.Calico,
			set: calico + `initContainers: [{name: install-cni, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist}]}],
				containers: [{name: calico-node, env: [{name: CNI_PLUGIN_TYPE, value: Calico}, {name: CALICO_NETWORKING_BACKEND, value: none}]}]}}}}`,
		},
		{
			name: "policies on EKS, config/v1.7/calico.yaml of aws/amazon-vpc-cni-k8s", program: v1alpha1.Calico,
			set: calico + `containers: [{name: calico-node, image: "docker.io/calico/node:v3.17.1", env: [{name: FELIX_INTERFACEPREFIX, value: eni},
				{name: CALICO_NETWORKING_BACKEND, value: none}, {name: NO_DEFAULT_POOLS, value: "true"}]}]}}}}`,
		},
		{
			name: "policies on AKS, by pkg/render/node.go of tigera/operator", program: v1alpha1.Calico,
			set: calico + `containers: [{name: calico-node, image: "quay.io/calico/node:v3.26.0", env: [{name: CALICO_NETWORKING_BACKEND, value: none},
				{name: FELIX_INTERFACEPREFIX, value: azv}]}]}}}}`,
		},
		{
			name: "policies on EKS, by pkg/render/node.go of tigera/operator", program: v1alpha1.Calico,
			set: calico + `containers: [{name: calico-node, env: [{name: CNI_PLUGIN_TYPE, value: AmazonVPC}]}]}}}}`,
		},
		{
			name: "policies on GKE, cluster/addons/calico-policy-controller of kubernetes/kubernetes v1.24", program: v1alpha1.Calico,
			set: calico + `initContainers: [{name: install-cni, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist}]}],
				containers: [{name: calico-node, image: "gcr.io/projectcalico-org/node:v3.19.1", env: [
				{name: CALICO_NETWORKING_BACKEND, value: none}, {name: USE_POD_CIDR, value: "true"}, {name: NO_DEFAULT_POOLS, value: "true"}]}]}}}}`,
		},
		{
			name: "Canal, manifests/canal.yaml of projectcalico/calico", want: v1alpha1.Canal, program: v1alpha1.Canal,
			set: `{metadata: {name: canal, labels: {k8s-app: canal}}, spec: {template: {spec: {containers: [
				{name: calico-node, image: "quay.io/calico/node:v3.32.0", env: [{name: CALICO_NETWORKING_BACKEND, value: none},
				{name: USE_POD_CIDR, value: "true"}]}, {name: kube-flannel, image: "docker.io/flannel/flannel:v0.24.4"}]}}}}`,
		},
		{
			name: "flannel of kOps, tests/integration/update_cluster/privateflannel of kubernetes/kops", want: v1alpha1.Flannel, program: v1alpha1.Flannel,
			set: `{metadata: {name: kube-flannel-ds, labels: {app: flannel, k8s-app: flannel, addon.kops.k8s.io/name: networking.flannel}},
				spec: {template: {spec: {containers: [{name: kube-flannel, image: "ghcr.io/flannel-io/flannel:v0.27.4"}]}}}}`,
		},
		{
			name: "Weave, prog/weave-kube/weave-daemonset-k8s-1.11.yaml of weaveworks/weave", want: v1alpha1.Weave, program: v1alpha1.Weave,
			set: `{metadata: {name: weave-net, namespace: kube-system, labels: {name: weave-net}}, spec: {template: {metadata: {labels: {name: weave-net}},
				spec: {containers: [{name: weave, image: "weaveworks/weave-kube:2.8.1", env: [{name: INIT_CONTAINER, value: "true"}]},
				{name: weave-npc, image: "weaveworks/weave-npc:2.8.1"}]}}}}`,
		},
		{
			name: "Weave by its image alone", want: v1alpha1.Weave, program: v1alpha1.Weave,
			set: `{metadata: {name: net}, spec: {template: {spec: {containers: [{name: weave, image: "e.com/mirror/weave-kube@sha256:0"}]}}}}`,
		},
		{
			name: "the VPC CNI, config/master/aws-k8s-cni.yaml of aws/amazon-vpc-cni-k8s",
			set:  `{metadata: {name: aws-node}, spec: {template: {spec: {containers: [{name: aws-node, image: "e.com/amazon-k8s-cni:v1.20.4"}]}}}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ds := &appsv1.DaemonSet{}
			if err := yaml.UnmarshalStrict([]byte(tt.set), ds); err != nil {
				t.Fatal(err)
			}
			if got := Of(ds); got != tt.want {
				t.Errorf("the network is %q, want %q", got, tt.want)
			}
			if got := Program(ds); got != tt.program {
				t.Errorf("the program is of %q, want %q", got, tt.program)
			}
			if Name(ds) == "" {
				t.Error("a mirror takes it for an application")
			}
		})
	}
}

// TestWeaveRange: what the DaemonSet says, or the range of Weave itself.
func TestWeaveRange(t *testing.T) {
	for env, want := range map[string]string{
		"[]": "10.32.0.0/12", "[{name: IPALLOC_RANGE, value: 100.96.0.0/11}]": "100.96.0.0/11", "[{name: IPALLOC_RANGE}]": "10.32.0.0/12",
	} {
		ds := &appsv1.DaemonSet{}
		set := `{spec: {template: {spec: {containers: [{name: weave, env: ` + env + `}, {name: weave-npc}]}}}}`
		if err := yaml.UnmarshalStrict([]byte(set), ds); err != nil {
			t.Fatal(err)
		}
		if got := WeaveRange(ds).Range; got != want {
			t.Errorf("%s: %s, want %s", env, got, want)
		}
	}
}
