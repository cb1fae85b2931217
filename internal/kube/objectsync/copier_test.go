//go:build apiserver && long

package objectsync_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objecttest"
)

const shopManifests = `apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: SHOP}
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: SHOP}
stringData: {password: do-not-show-this}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config, namespace: SHOP, labels: {app: web}}
data: {a: "1", b.c: "2"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: "odd:name", namespace: SHOP}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: SHOP}
spec: {type: NodePort, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: more, port: 81}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: SHOP}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: SHOP}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "registry.example.com/web:1", ports: [{containerPort: 8080}]}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: report, namespace: SHOP}
spec:
  schedule: "* * * * *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: SHOP}
spec:
  rules: [{host: shop.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
  tls: [{hosts: [shop.example.com], secretName: tls}]
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: quota, namespace: SHOP}
spec: {hard: {pods: "10"}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: SHOP}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: SHOP}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, minReplicas: 1, maxReplicas: 5, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]}
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: VAULT, annotations: {kubernetes.io/service-account.name: web}}
type: kubernetes.io/service-account-token`

// rich changes nearly all there is to change.
func rich(o *copyrules.Options) {
	o.Copy.Registries = []v1alpha1.RegistrySwap{{From: "registry.example.com", To: "registry.mirror.example.com"}}
	o.Hosts = []v1alpha1.HostAlias{{Name: "shop.example.com", Alias: "shop.mirror.example.com"}}
	o.Copy.Transforms = []v1alpha1.Transform{{
		Kinds:     []string{"deployments.apps"},
		JSONPatch: `[{"op": "add", "path": "/spec/template/spec/containers/-", "value": {"name": "more", "image": "more:1"}}]`,
	}}
}

func TestRunAndCompare(t *testing.T) {
	f := setup(t)
	f.make(f.source, shopManifests)
	c := f.copier(rich)
	first := f.clean(c)
	if first.Written < 13 || first.Failed > 0 || first.Done() != first.Total {
		t.Errorf("first run: %+v", first)
	}
	if diffs := f.differences(c); len(diffs) > 0 {
		t.Errorf("differences:\n%s", strings.Join(diffs, "\n"))
	}
	second := f.clean(c)
	if second.Written != 0 || second.Same != first.Written || second.Deleted != 0 {
		t.Errorf("second run: %+v", second)
	}
	f.gone(f.target, objecttest.KindOf("v1", "Secret"), f.vault, "token")

	config, secret := objecttest.KindOf("v1", "ConfigMap"), objecttest.KindOf("v1", "Secret")
	f.change(f.target, config, f.shop, "config", func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, "other", "data", "b.c")
	})
	f.change(f.target, secret, f.shop, "key", func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, "b3RoZXI=", "data", "password")
	})
	f.remove(f.target, objecttest.KindOf("v1", "Service"), f.shop, "web")
	f.remove(f.source, objecttest.KindOf("policy/v1", "PodDisruptionBudget"), f.shop, "web")
	got := strings.Join(f.differences(c), "\n")
	want := strings.NewReplacer("SHOP", f.shop).Replace(`secrets SHOP/key: .data.password is (not shown), and should be (not shown)
configmaps SHOP/config: .data["b.c"] is "other", and should be "2"
services SHOP/web: is absent in the target, and should be present
poddisruptionbudgets.policy SHOP/web: is present in the target, and should be absent`)
	if got != want {
		t.Errorf("differences:\n%s\nwant:\n%s", got, want)
	}
	// What a controller makes of a copy has the copy's labels.
	f.make(
		f.target,
		"apiVersion: v1\nkind: Endpoints\nmetadata: {name: by-a-controller, namespace: SHOP, labels: {replumb.dev/mirror: m}}\n",
	)
	c.Rewrite = true
	if third := f.clean(c); third.Deleted != 1 {
		t.Errorf("third run: %+v", third)
	}
	if diffs := f.differences(c); len(diffs) > 0 {
		t.Errorf("differences after all was written again:\n%s", strings.Join(diffs, "\n"))
	}
	f.get(f.target, objecttest.KindOf("v1", "Endpoints"), f.shop, "by-a-controller")
}
