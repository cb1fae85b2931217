package rehearsal

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func objectOf(t *testing.T, group, version, resource, text string) *object {
	t.Helper()
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &object{
		GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource},
		Unstructured:         &unstructured.Unstructured{}, stage: middle,
	}
	if err := o.UnmarshalJSON(body); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestSkip(t *testing.T) {
	for _, tt := range []struct{ group, resource, text, want string }{
		{"", "services", `{kind: Service, metadata: {namespace: default, name: kubernetes}}`, madeByServer},
		{"", "services", `{kind: Service, metadata: {namespace: shop, name: kubernetes}}`, ""},
		{"discovery.k8s.io", "endpointslices", `{kind: EndpointSlice, metadata: {namespace: default, name: kubernetes}}`, madeByServer},
		{"networking.k8s.io", "servicecidrs", `{kind: ServiceCIDR, metadata: {name: kubernetes}}`, madeByServer},
		{"networking.k8s.io", "servicecidrs", `{kind: ServiceCIDR, metadata: {name: more}}`, ""},
		{
			"networking.k8s.io", "ipaddresses",
			`{kind: IPAddress, metadata: {name: 10.96.0.9, labels: {ipaddress.kubernetes.io/managed-by: ipallocator.k8s.io}}}`, madeByServer,
		},
		{"networking.k8s.io", "ipaddresses", `{kind: IPAddress, metadata: {name: 10.96.0.9}}`, ""},
		{"coordination.k8s.io", "leases", `{kind: Lease, metadata: {namespace: replumb-system, name: replumb}}`, ofMoment},
		{"apiregistration.k8s.io", "apiservices", `{kind: APIService, metadata: {name: a}, spec: {service: {name: metrics}}}`, leadsAway},
		{"apiregistration.k8s.io", "apiservices", `{kind: APIService, metadata: {name: v1.}}`, madeByServer},
		{"", "secrets", `{kind: Secret, metadata: {name: a}, type: kubernetes.io/service-account-token}`, aToken},
		{"", "secrets", `{kind: Secret, metadata: {name: a}, type: Opaque}`, ""},
		{"", "pods", `{kind: Pod, metadata: {name: a, deletionTimestamp: "2026-01-02T03:04:05Z"}}`, ending},
	} {
		if got := skip(objectOf(t, tt.group, "v1", tt.resource, tt.text)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.text, got, tt.want)
		}
	}
}

func TestFit(t *testing.T) {
	const meta = `metadata: {name: a, uid: u, resourceVersion: "7", creationTimestamp: "2026-01-02T03:04:05Z", generation: 3,
  managedFields: [{manager: kubectl}], labels: {app: a}, ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: o}]}`
	for _, tt := range []struct {
		name, group, resource, spec string
		stage                       stage
		has, lacks                  []string
	}{
		{
			"what a server fills in goes", "networking.k8s.io", "networkpolicies", `kind: NetworkPolicy`, middle,
			[]string{`"uid":"u"`, `"app":"a"`, `"ownerReferences"`},
			[]string{"resourceVersion", "creationTimestamp", "generation", "managedFields"},
		},
		{
			"what is written to etcd is as it was", "apps", "deployments", `kind: Deployment`, middle,
			[]string{`"uid":"u"`, `"generation":3`, `"creationTimestamp":"2026-01-02T03:04:05Z"`},
			[]string{"resourceVersion", "managedFields"},
		},
		{
			"no webhook is called", "admissionregistration.k8s.io", "validatingwebhookconfigurations",
			`{kind: ValidatingWebhookConfiguration, webhooks: [{name: x, matchConditions: [{name: a, expression: "true"}]}, {name: y}]}`, late,
			[]string{`"expression":"false"`},
			[]string{`"expression":"true"`},
		},
		{
			"no definition converts by a webhook", "apiextensions.k8s.io", "customresourcedefinitions",
			`{kind: CustomResourceDefinition, spec: {group: x, conversion: {strategy: Webhook}}, status: {storedVersions: [v1]}}`, early,
			[]string{`"group":"x"`},
			[]string{"Webhook", "storedVersions"},
		},
		{"a job keeps its selector", "batch", "jobs", `{kind: Job, spec: {}}`, middle, []string{`"manualSelector":true`}, nil},
		{
			"the API server finds no kubelet", "", "nodes",
			`{kind: Node, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: ExternalDNS, address: a.example}]}}`,
			middle,
			[]string{"192.0.2.1", "10.244.1.0/24"},
			[]string{"a.example"},
		},
		{"quotas come last", "", "resourcequotas", `{kind: ResourceQuota, spec: {}}`, late, nil, nil},
		{"namespaces come first", "", "namespaces", `{kind: Namespace}`, early, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var whole map[string]any
			if err := yaml.Unmarshal([]byte(meta), &whole); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(tt.spec), &whole); err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			o := objectOf(t, tt.group, "v1", tt.resource, string(text))
			fit(o)
			body, err := json.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			for _, has := range tt.has {
				if !strings.Contains(string(body), has) {
					t.Errorf("%s is missing in %s", has, body)
				}
			}
			for _, lacks := range tt.lacks {
				if strings.Contains(string(body), lacks) {
					t.Errorf("%s is still in %s", lacks, body)
				}
			}
			if o.stage != tt.stage {
				t.Errorf("stage %d, want %d", o.stage, tt.stage)
			}
		})
	}
}

// TestGroups: owners are made before what they own, namespaces before all, and what may refuse others after all.
func TestGroups(t *testing.T) {
	owned := func(group, resource, kind, name, uid, owner string) *object {
		o := objectOf(t, group, "v1", resource, `{kind: `+kind+`, metadata: {name: `+name+`, uid: `+uid+`}}`)
		if owner != "" {
			_ = unstructured.SetNestedSlice(
				o.Object,
				[]any{map[string]any{"apiVersion": "v1", "kind": "X", "name": "x", "uid": owner}},
				"metadata",
				"ownerReferences",
			)
		}
		fit(o)
		return o
	}
	in := &inventory{objects: []*object{
		owned("", "resourcequotas", "ResourceQuota", "q", "q", ""),
		owned("", "pods", "Pod", "p", "p", "rs"),
		owned("apps", "replicasets", "ReplicaSet", "rs", "rs", "d"),
		owned("apps", "deployments", "Deployment", "d", "d", "gone"),
		owned("networking.k8s.io", "servicecidrs", "ServiceCIDR", "more", "c", ""),
		owned("", "nodes", "Node", "node1", "uid-node1", ""),
		owned("", "namespaces", "Namespace", "shop", "ns", ""),
		owned("x", "circles", "Circle", "a", "ca", "cb"),
		owned("x", "circles", "Circle", "b", "cb", "ca"),
	}}
	in.sort()
	at, groups := map[string]int{}, in.groups()
	for i, group := range groups {
		for _, o := range group {
			at[o.GetName()] = i
		}
	}
	for _, pair := range [][2]string{{"shop", "more"}, {"more", "node1"}, {"node1", "d"}, {"d", "rs"}, {"rs", "p"}, {"p", "q"}, {"a", "q"}, {"b", "q"}} {
		if at[pair[0]] >= at[pair[1]] {
			t.Errorf("%s is made in group %d, and %s in group %d", pair[0], at[pair[0]], pair[1], at[pair[1]])
		}
	}
	if len(at) != len(in.objects) {
		t.Errorf("%d of %d objects are in groups", len(at), len(in.objects))
	}
}

func TestNodePorts(t *testing.T) {
	in := &inventory{objects: []*object{
		objectOf(
			t,
			"",
			"v1",
			"services",
			`{kind: Service, metadata: {name: a}, spec: {ports: [{nodePort: 30080}, {nodePort: 20000}, {port: 80}]}}`,
		),
		objectOf(t, "", "v1", "services", `{kind: Service, metadata: {name: b}, spec: {healthCheckNodePort: 31000}}`),
		objectOf(t, "", "v1", "pods", `{kind: Pod, metadata: {name: c}}`),
	}}
	if least, greatest := in.nodePorts(); least != 20000 || greatest != 31000 {
		t.Errorf("%d to %d", least, greatest)
	}
	if got := flags(in)["service-node-port-range"]; got != "20000-32767" {
		t.Errorf("range %q", got)
	}
	if got, is := flags(&inventory{})["service-node-port-range"]; is {
		t.Errorf("range %q without a node port", got)
	}
}

func TestSubstantial(t *testing.T) {
	for text, want := range map[string]bool{
		`{}`: false, `null`: false, `{"loadBalancer":{}}`: false, `{"conditions":[]}`: false, `{"phase":""}`: false,
		`{"phase":"Running"}`: true, `{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}`: true, `{"replicas":0}`: true,
	} {
		var status any
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			t.Fatal(err)
		}
		if got := substantial(status); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}
