//go:build apiserver && long

package objectsync_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copypreview"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/kube/objectsync/objecttest"
)

// eventually waits for what comes in its own time.
func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		f.Fatalf("it does not come about that %s", what)
	}
}

func TestFollow(t *testing.T) {
	f := setup(t)
	f.make(f.source, shopManifests)
	c := f.copier(rich)
	follower := objectsync.NewFollower(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	f.eventually("the first copy is done", follower.CaughtUp)
	if diffs := f.differences(c); len(diffs) > 0 {
		t.Fatalf("differences:\n%s", strings.Join(diffs, "\n"))
	}
	config, deployment := objecttest.KindOf("v1", "ConfigMap"), objecttest.KindOf("apps/v1", "Deployment")
	f.change(f.source, config, f.shop, "config", func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, "new", "data", "a")
	})
	f.change(f.source, deployment, f.shop, "web", func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, int64(5), "spec", "replicas")
	})
	f.make(f.source, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: added, namespace: VAULT}")
	f.remove(f.source, objecttest.KindOf("v1", "Service"), f.shop, "headless")
	changed := time.Now()
	f.eventually("changes are followed", func() bool { return follower.CaughtUp() && len(f.differences(c)) == 0 })
	t.Logf("four changes followed, and seen to be by comparison, after %s", time.Since(changed))
	f.gone(f.target, objecttest.KindOf("v1", "Service"), f.shop, "headless")
	replicas, _, _ := unstructured.NestedInt64(f.get(f.target, deployment, f.shop, "web").Object, "spec", "replicas")
	if replicas != 5 {
		t.Errorf("the copy has %d replicas", replicas)
	}
	if troubles := follower.Troubles(); len(troubles) > 0 || follower.Lag() != 0 {
		t.Errorf("lag %s, %v", follower.Lag(), troubles)
	}
}

// What cannot be copied is told, and copied as soon as it can be.
func TestFollowTrouble(t *testing.T) {
	f := setup(t)
	f.make(f.target, "apiVersion: v1\nkind: Namespace\nmetadata: {name: SHOP, labels: {replumb.dev/mirror: m}}")
	f.make(f.target, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: SHOP}\ndata: {a: target}")
	c := f.copier(nil)
	follower := objectsync.NewFollower(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	f.eventually("the first copy is done", follower.CaughtUp)
	f.make(f.source, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: SHOP}\ndata: {a: source}")
	f.eventually("trouble is told", func() bool { return len(follower.Troubles()) == 1 })
	if follower.CaughtUp() || follower.Lag() == 0 || follower.Troubles()[0].Reason != objectsync.ReasonExists {
		t.Errorf("settled %v, lag %s, %v", follower.CaughtUp(), follower.Lag(), follower.Troubles())
	}
	f.remove(f.target, objecttest.KindOf("v1", "ConfigMap"), f.shop, "c")
	f.eventually("it is copied", follower.CaughtUp)
	if diffs := f.differences(c); len(diffs) > 0 {
		t.Errorf("differences: %v", diffs)
	}
}

func TestSleepAndWake(t *testing.T) {
	f := setup(t)
	f.make(f.source, shopManifests)
	once := func(o *copyrules.Options) { o.Singletons.Workloads = []string{"deployment/" + f.shop + "/web"} }
	c := f.copier(once)
	f.clean(c)
	cron, deployment := objecttest.KindOf("batch/v1", "CronJob"), objecttest.KindOf("apps/v1", "Deployment")
	runs := func(s *objectsync.Side, suspended bool, replicas int64) {
		t.Helper()
		suspend, _, _ := unstructured.NestedBool(f.get(s, cron, f.shop, "report").Object, "spec", "suspend")
		n, _, _ := unstructured.NestedInt64(f.get(s, deployment, f.shop, "web").Object, "spec", "replicas")
		if suspend != suspended || n != replicas {
			t.Errorf("suspend %v, replicas %d; want %v, %d", suspend, n, suspended, replicas)
		}
	}
	ctx := context.Background()
	step := func(do func(context.Context) ([]objects.Ref, error), want int) {
		t.Helper()
		changed, err := do(ctx)
		if err != nil || len(changed) != want {
			t.Errorf("changed %v, %v; want %d", changed, err, want)
		}
	}
	runs(f.source, false, 3)
	runs(f.target, true, 0)
	step(singletons(c, f.target).Sleep, 0)
	step(singletons(c, f.source).Sleep, 2)
	step(singletons(c, f.source).Sleep, 0)
	runs(f.source, true, 0)
	wake := func(s, other *objectsync.Side, want int) {
		t.Helper()
		step(func(ctx context.Context) ([]objects.Ref, error) { return singletons(c, s).Wake(ctx, other) }, want)
	}
	wake(f.target, f.source, 2)
	wake(f.target, f.source, 0)
	runs(f.target, false, 3)
	if diffs := f.differences(c); len(diffs) > 0 {
		t.Errorf("differences: %v", diffs)
	}
	// A run that goes on after names have moved lets them run.
	f.clean(f.copier(func(o *copyrules.Options) { once(o); o.Awake = true }))
	runs(f.target, false, 3)
	asleep, running, err := singletons(c, f.source).Asleep(ctx)
	if err != nil || len(asleep) != 2 || len(running) != 0 {
		t.Errorf("asleep %v, running %v, %v", asleep, running, err)
	}
	step(singletons(c, f.target).Sleep, 2)
	wake(f.source, f.target, 2)
	runs(f.source, false, 3)
	runs(f.target, true, 0)
	// Copies that were left awake, since the target was not asked, sleep again with the next copy.
	wake(f.target, f.source, 2)
	f.clean(c)
	runs(f.target, true, 0)
	for _, s := range []*objectsync.Side{f.source} {
		if _, left := f.get(s, cron, f.shop, "report").GetAnnotations()[v1alpha1.AnnotationSuspend]; left {
			t.Error("an annotation is left")
		}
	}
}

func TestSurvey(t *testing.T) {
	f := setup(t)
	f.make(f.source, shopManifests)
	f.make(f.source, `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: SHOP}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: cloudy, namespace: SHOP, annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/x"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: one, namespace: SHOP}
spec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: elected, namespace: SHOP}
spec: {replicas: 2, selector: {matchLabels: {a: c}}, template: {metadata: {labels: {a: c}}, spec: {serviceAccountName: elected, containers: [{name: c, image: i}]}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: log, namespace: SHOP}
spec: {selector: {matchLabels: {a: d}}, template: {metadata: {labels: {a: d}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: elects, namespace: SHOP}
rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: elects, namespace: SHOP}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: elects}
subjects: [{kind: ServiceAccount, name: elected, namespace: SHOP}]`)
	t.Cleanup(func() {
		f.change(
			f.source,
			objecttest.KindOf("v1", "PersistentVolumeClaim"),
			f.shop,
			"data",
			func(o *unstructured.Unstructured) { o.SetFinalizers(nil) },
		)
		f.remove(f.source, objecttest.KindOf("v1", "PersistentVolumeClaim"), f.shop, "data")
	})
	s, err := copypreview.Of(context.Background(), f.copier(nil))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Claims) != 1 || len(s.Cloud) != 1 || len(s.Twice) != 2 || len(s.Missing) != 0 || len(s.Conflicts) != 0 ||
		len(s.Kinds.Broken) != 0 {
		t.Errorf("claims %v, cloud %v, twice %v, missing %v, conflicts %v, broken %v",
			s.Claims, s.Cloud, s.Twice, s.Missing, s.Conflicts, s.Kinds.Broken)
	}
	if !strings.Contains(s.Cloud[0].What, "arn:aws:iam::1:role/x") || s.Twice[0].Ref.Name != "elected" ||
		!strings.Contains(s.Twice[0].What, "Leases") || s.Twice[1].Ref.Name != "one" {
		t.Errorf("cloud %v, twice %v", s.Cloud, s.Twice)
	}
	if b := fmt.Sprint(s.Beside); !strings.Contains(b, "daemonsets.apps "+f.shop+" [log]") || !strings.Contains(b, "[web]") {
		t.Errorf("beside %s", b)
	}
	found := false
	for _, l := range s.LeftOut {
		found = found || (l.Resource == "secrets" && l.Why == copyrules.OfAnAccount && l.Count == 1 && len(l.Examples) == 1)
	}
	if !found {
		t.Errorf("left out: %+v", s.LeftOut)
	}
}

// Nothing runs pods here: each copied workload is unready, and says so.
func TestUnready(t *testing.T) {
	f := setup(t)
	f.make(f.source, shopManifests)
	c := f.copier(nil)
	f.clean(c)
	f.make(f.target, `apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: SHOP, labels: {app: web}}
spec: {serviceAccountName: web, automountServiceAccountToken: false, containers: [{name: web, image: gone}]}`)
	k := objecttest.KindOf("v1", "Pod")
	t.Cleanup(func() { f.remove(f.target, k, f.shop, "web-1") })
	p := f.get(f.target, k, f.shop, "web-1")
	p.Object["status"] = map[string]any{"containerStatuses": []any{map[string]any{
		"name": "web", "image": "gone", "imageID": "", "ready": false, "restartCount": int64(0),
		"state": map[string]any{"waiting": map[string]any{"reason": "ErrImagePull", "message": "not found"}},
	}}}
	if err := f.target.SubResource("status").Update(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	notes, err := c.Unready(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var mine []string
	for _, n := range notes {
		if n.Ref.Namespace == f.shop {
			mine = append(mine, n.Ref.String()+" "+n.What)
		}
	}
	want := "deployments.apps " + f.shop + "/web its controller has not seen the change: pod web-1: container web waits: ErrImagePull not found"
	if strings.Join(mine, "\n") != want {
		t.Errorf("unready: %v", mine)
	}
}
