package nodes

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// facts are what manifests do not have.
type facts struct {
	Denied []string `json:"denied"`
	// Etcd are its members, the first of which leads.
	Etcd []etcd.Member `json:"etcd"`
	// Events are those of the second etcd.
	Events []etcd.Member `json:"events"`
	// EtcdProblem is why they could not be asked.
	EtcdProblem string `json:"etcdProblem"`
	// Records says of names why they cannot be moved.
	Records map[string]string `json:"records"`
	// Ends says of names of the API why what they are to have at last does not answer.
	Ends map[string]string `json:"ends"`
	// Recorded is what the Migration says of nodes.
	Recorded []v1alpha1.NodeStatus `json:"recorded"`
	// Absent are Secrets that are not there.
	Absent []string `json:"absent"`
}

// TestGolden reads a cluster and a Migration from testdata/golden/*.txtar and compares what the
// checks find and the plans that are made. No cluster is needed.
func TestGolden(t *testing.T) {
	golden.Run(t, "testdata/golden/*.txtar", sections)
}

func sections(t *testing.T, in map[string][]byte) golden.Sections {
	t.Helper()
	p, input := planner(t, in)
	return golden.Sections{
		"findings": func() string { return migrationtest.Found(findings.Run(Checks(), input)) },
		"plan":     func() string { return migrationtest.Plan(t, p.Apply()) },
		"finish":   func() string { return migrationtest.Plan(t, p.Finish()) },
		"rollback": func() string { return migrationtest.Plan(t, p.Rollback()) },
	}
}

func planner(t *testing.T, in map[string][]byte) (*Planner, Input) {
	t.Helper()
	m, err := spec.Parse(in["migration.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	job, err := NewJob(migration.Deps{}, m)
	if err != nil {
		t.Fatal(err)
	}
	var f facts
	if err := yaml.UnmarshalStrict(in["facts.yaml"], &f); err != nil {
		t.Fatal(err)
	}
	s := readSurvey(t, job.Spec, in["cluster.yaml"])
	s.Recorded = f.Recorded
	if err := job.sortIntoTiers(s); err != nil {
		t.Fatal(err)
	}
	input := Input{Inventory: s, RecordProblems: map[string]error{}, Image: job.agents().Image().Name}
	input.Access = migrationtest.Access(t, Roles(), f.Denied...)
	for name, problem := range f.Records {
		input.RecordProblems[name] = errors.New(problem)
	}
	input.EndProblems = map[string]error{}
	for name, problem := range f.Ends {
		input.EndProblems[name] = errors.New(problem)
	}
	if len(f.Etcd) > 0 {
		s.Etcd = &etcd.Membership{Members: f.Etcd, Leader: f.Etcd[0].ID}
	}
	if len(f.Events) > 0 {
		s.Events = &etcd.Membership{Members: f.Events, Leader: f.Events[0].ID}
	}
	if f.EtcdProblem != "" {
		input.EtcdProblem = errors.New(f.EtcdProblem)
	}
	if input.AbsentSecrets, err = job.absentSecrets(t.Context(), migrationtest.Lacking(f.Absent)); err != nil {
		t.Fatal(err)
	}
	nowhere, err := cluster.Connect(&rest.Config{Host: "http://192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	job.Tools.Cluster = nowhere
	l := live{job.Tools, job.Spec}
	records, apiRecords := movesOf(t, l, job.Spec.Records), movesOf(t, l, nil)
	if cp := job.Spec.ControlPlane; cp != nil {
		apiRecords = movesOf(t, l, cp.Records)
	}
	return &Planner{
		Records: records, APIRecords: apiRecords,
		Base: migration.Base{
			Tools:     migration.Deps{Cluster: nowhere},
			Migration: job.Migration,
		},
		Inventory: s,
		Etcd:      clientOf(s),
		Events:    eventsOf(s),
		Agents:    job.newAgents(s),
	}, input
}

// movesOf are those of records that no one has looked at.
func movesOf(t *testing.T, l live, all []v1alpha1.RecordSpec) []*dnsrecords.RecordMove {
	t.Helper()
	moves, err := recordLoader{l}.recordMoves(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	return moves
}

func eventsOf(s *Inventory) *etcd.Client {
	if s.Events == nil {
		return nil
	}
	return etcd.Labelled(eventsLabel)
}

// clientOf is one that is never used.
func clientOf(s *Inventory) *etcd.Client {
	if s.Spec.ControlPlane == nil {
		return nil
	}
	return &etcd.Client{}
}

// readSurvey sorts manifests into what a look at the cluster finds.
func readSurvey(t *testing.T, s Spec, manifests []byte) *Inventory {
	t.Helper()
	out := &Inventory{
		Spec: s, Workloads: &rollout.State{}, Volumes: map[string]*corev1.PersistentVolume{},
		Claims: map[types.NamespacedName]*corev1.PersistentVolumeClaim{},
	}
	scene := spare.Inputs{}
	for doc := range bytes.SplitSeq(manifests, []byte("---\n")) {
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		o, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		switch o := o.(type) {
		case *corev1.Node:
			out.Nodes = append(out.Nodes, *o)
		case *corev1.Pod:
			out.Pods = append(out.Pods, *o)
		case *autoscalingv2.HorizontalPodAutoscaler:
			scene.Scalers = append(scene.Scalers, *o)
		case *corev1.Service:
			if o.Namespace == metav1.NamespaceSystem && o.Name == "kube-dns" {
				scene.Services = append(scene.Services, *o)
			}
			out.sortServices([]corev1.Service{*o})
		case *appsv1.Deployment:
			out.Workloads.Deployments = append(out.Workloads.Deployments, *o)
		case *appsv1.StatefulSet:
			out.Workloads.StatefulSets = append(out.Workloads.StatefulSets, *o)
		case *appsv1.ReplicaSet:
			out.Workloads.ReplicaSets = append(out.Workloads.ReplicaSets, metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta})
		case *appsv1.DaemonSet:
			out.Workloads.DaemonSets = append(out.Workloads.DaemonSets, *o)
		case *policyv1.PodDisruptionBudget:
			out.Workloads.Budgets = append(out.Workloads.Budgets, *o)
		case *networkingv1.NetworkPolicy:
			out.Policies = append(out.Policies, *o)
		case *corev1.PersistentVolume:
			out.Volumes[o.Name] = o
		case *corev1.PersistentVolumeClaim:
			out.Claims[client.ObjectKeyFromObject(o)] = o
		default:
			t.Fatalf("a survey does not read a %T", o)
		}
	}
	out.findAutoscalers()
	scene.Deployments, scene.Nodes = out.Workloads.Deployments, out.Nodes
	out.Spares = spare.Find(s.Spares, scene)
	return out
}

// TestEveryCheckFiresAndPasses: each has a golden file for both.
func TestEveryCheckFiresAndPasses(t *testing.T) {
	migrationtest.EveryCheck(t, Checks(), "testdata/golden/*.txtar")
}

// TestPullSecrets: canaries have those that are named, and the image of this version where none is.
func TestPullSecrets(t *testing.T) {
	for _, secrets := range [][]string{nil, {"registry", "mirror"}} {
		l := live{migration.Deps{Image: pull.Image{Name: "own"}}, Spec{Common: v1alpha1.MigrationSpec{ImagePullSecrets: secrets}}}
		if got := l.connectivityTest(nil).Image; got.Name != "own" || !slices.Equal(got.Secrets, secrets) {
			t.Errorf("%v: canaries have %+v", secrets, got)
		}
	}
}

// TestAbsentSecrets: those of canaries that are not to run are not looked for.
func TestAbsentSecrets(t *testing.T) {
	for mode, want := range map[v1alpha1.PodCanaryMode]int{v1alpha1.PodCanaryRun: 1, v1alpha1.PodCanaryDisabled: 0} {
		common := v1alpha1.MigrationSpec{
			Image: "i", ImagePullSecrets: []string{"registry"}, Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled},
		}
		got, err := (&Job{Spec: Spec{Canary: v1alpha1.PodCanarySpec{Mode: mode}, Common: common}}).absentSecrets(t.Context(), migrationtest.Lacking{"registry"})
		got = slices.DeleteFunc(got, func(r findings.Result) bool { return r.Outcome == findings.Skipped })
		if err != nil || len(got) != want {
			t.Errorf("%s: found %v, %v", mode, got, err)
		}
	}
}

func TestSpecRefuses(t *testing.T) {
	const sets = "old: {cidrs: [10.1.0.0/16]}, new: {cidrs: [10.2.0.0/16]}"
	for _, tt := range []struct{ name, nodes, field, says string }{
		{"no old nodes", "{old: {}, new: {cidrs: [10.2.0.0/16]}}", "spec.nodes.old", "chooses no node"},
		{"an empty list", "{old: {providerIDs: []}, new: {cidrs: [10.2.0.0/16]}}", "spec.nodes.old", "chooses no node"},
		{"every node", "{old: {selector: {}}, new: {cidrs: [10.2.0.0/16]}}", "spec.nodes.old.selector", "chooses every node"},
		{"no range", "{old: {cidrs: [x]}, new: {cidrs: [10.2.0.0/16]}}", "spec.nodes.old.cidrs[0]", `"x" is not a range`},
		{"host bits", "{old: {cidrs: [10.1.0.1/16]}, new: {cidrs: [10.2.0.0/16]}}", "spec.nodes.old.cidrs[0]", "has host bits"},
		{"one network", "{old: {cidrs: [10.0.0.0/8]}, new: {cidrs: [10.2.0.0/16]}}", "spec.nodes.new.cidrs", "overlaps a range in spec.nodes.old.cidrs"},
		{"one machine", "{old: {providerIDs: [a]}, new: {providerIDs: [a]}}", "spec.nodes.new.providerIDs", "a is in spec.nodes.old.providerIDs as well"},
		{"no node at once", "{" + sets + ", drain: {parallel: 0}}", "spec.nodes.drain.parallel", "is neither"},
		{"too many at once", "{" + sets + ", drain: {parallel: 200%}}", "spec.nodes.drain.parallel", "is neither"},
		{"no number", "{" + sets + ", drain: {parallel: some}}", "spec.nodes.drain.parallel", "is neither"},
		{"no time", "{" + sets + ", drain: {timeout: 0s}}", "spec.nodes.drain.timeout", "is not positive"},
		{"negative settle", "{" + sets + ", ingress: {settle: -1s}}", "spec.nodes.ingress.settle", "is negative"},
		{"no name", "{" + sets + ", drain: {force: [db-0]}}", "spec.nodes.drain.force[0]", `"db-0" is not namespace/name`},
		{"force while waiting", "{" + sets + ", drain: {mode: Wait, force: [shop/db-0]}}", "spec.nodes.drain.force", "mode Wait deletes none"},
		{"evictions while waiting", "{" + sets + ", drain: {mode: Wait, barePods: Evict}}", "spec.nodes.drain.barePods", "mode Wait evicts nothing"},
		{"unknown drain", "{" + sets + ", drain: {mode: Never}}", "spec.nodes.drain.mode", "Never"},
		{"no target", "{" + sets + ", ingress: {targets: [lb]}}", "spec.nodes.ingress.targets[0]", `"lb" is not host:port`},
		{"empty action", "{" + sets + ", terminate: {action: {}}}", "spec.nodes.terminate.action", "exactly one of exec and http"},
		{"endless action", "{" + sets + ", join: {provision: {exec: {command: [a]}, timeout: 7h}}}", "spec.nodes.join.provision.timeout", "7h"},
		{"unknown time", "{" + sets + ", terminate: {when: Never}}", "spec.nodes.terminate.when", "Never"},
		{"unknown room", "{" + sets + ", join: {room: None}}", "spec.nodes.join.room", "None"},
		{
			"control plane without networks", "{old: {providerIDs: [a]}, new: {providerIDs: [b]}, controlPlane: {etcd: {endpoints: ['https://10.1.0.1:2379'], caFile: a, certFile: b, keyFile: c, snapshotUnencrypted: true}}}",
			"cidrs", "is empty",
		},
		{"plain etcd", "{" + sets + ", controlPlane: {etcd: {endpoints: ['10.1.0.1:2379'], caFile: a, certFile: b, keyFile: c, snapshotUnencrypted: true}}}", "spec.nodes.controlPlane.etcd.endpoints[0]", "is no client URL"},
		{
			"nowhere to come back", "{" + sets + ", controlPlane: {mode: Replace, etcd: {endpoints: ['https://10.1.0.1:2379'], caFile: a, certFile: b, keyFile: c, snapshotUnencrypted: true}}}",
			"spec.nodes.controlPlane.provision", "mode is Replace",
		},
		{"record without values", "{" + sets + ", records: [{name: a.example.com, to: [], provider: {manual: {}}}]}", "spec.nodes.records[0].to", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := spec.Parse(
				[]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {nodes: " + tt.nodes + "}\n"),
			)
			if err == nil {
				_, err = NewJob(migration.Deps{}, m)
			}
			var wrong *spec.Error
			if !errors.As(err, &wrong) || !strings.HasSuffix(wrong.Field, tt.field) || !strings.Contains(wrong.Error(), tt.says) ||
				wrong.Hint == "" {
				t.Errorf("got %v (%+v), want %s: %s", err, wrong, tt.field, tt.says)
			}
		})
	}
}
