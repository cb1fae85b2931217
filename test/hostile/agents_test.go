package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// watchedByAgents is the same move with agents.
const watchedByAgents = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: ` + migrationName + `}
spec:
  serviceCIDR: {from: [` + oldRange + `], to: [` + newRange + `], drain: 0s, follower: Disabled}
  batch: {settle: 0s}
  image: "example.com/replumb:v1"
`

// agent has the token of the agent of a network on a node, as kubelet mounts it into the agent's pod.
func (s *scene) agent(account, node, pod string) client.Client {
	s.Helper()
	return s.as("system:serviceaccount:"+v1alpha1.SystemNamespace+":"+account, map[string][]string{
		"authentication.kubernetes.io/node-name": {node}, "authentication.kubernetes.io/pod-uid": {pod},
	}, "system:serviceaccounts", "system:serviceaccounts:"+v1alpha1.SystemNamespace)
}

// nodeReport is what an agent in the network of its node writes by server-side apply: the report itself, or its status.
func nodeReport(node, instance string, status bool) *unstructured.Unstructured {
	r := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeReport", "metadata": map[string]any{"name": node},
	}}
	if !status {
		r.SetLabels(map[string]string{v1alpha1.LabelMigration: migrationName})
		return r
	}
	r.Object["status"] = map[string]any{"agents": []any{map[string]any{
		"origin": "Host", "instance": instance, "sequence": int64(1), "reportedAt": "2026-01-02T03:04:05.000000Z",
	}}}
	return r
}

func (s *scene) report(c client.Client, r *unstructured.Unstructured) error {
	s.Helper()
	as, body := client.FieldOwner("replumb-agent-host"), client.ApplyConfigurationFromUnstructured(r)
	if r.Object["status"] == nil {
		return c.Apply(s.Context(), body, as, client.ForceOwnership)
	}
	return c.Status().Apply(s.Context(), body, as, client.ForceOwnership)
}

// TestAgentSpeaksForAnotherNode: root on node a takes the token of its agent, and reports for node b. It would have barriers count as
// passed on nodes that know nothing, hide losses, or have a migration taken back.
func TestAgentSpeaksForAnotherNode(t *testing.T) {
	s := begin(t)
	s.write(watchedByAgents)
	s.expect(s.replumb("apply", "-f", s.file, "--until", "agents"), 0)
	a, b := s.agent("agent", "a", "pod-a"), s.agent("agent", "b", "pod-b")
	s.must(s.report(b, nodeReport("b", "", false)))
	s.must(s.report(b, nodeReport("b", "pod-b", true)))
	for name, attack := range map[string]func() error{
		"the status of another's": func() error { return s.report(a, nodeReport("b", "pod-a", true)) },
		"in the name of its pod":  func() error { return s.report(a, nodeReport("b", "pod-b", true)) },
		"the labels of another's": func() error { return s.report(a, nodeReport("b", "", false)) },
		"a report for a node":     func() error { return s.report(a, nodeReport("c", "", false)) },
		"another pod's, of its own": func() error {
			s.must(s.report(a, nodeReport("a", "", false)))
			return s.report(a, nodeReport("a", "pod-b", true))
		},
		"a pod that is no agent": func() error {
			return s.report(s.pod(v1alpha1.SystemNamespace, "default", "b"), nodeReport("b", "pod-b", true))
		},
		"the pods of all nodes, by the agent that others call": func() error {
			return s.agent("probe", "a", "pod-p").List(s.Context(), &corev1.PodList{})
		},
	} {
		if err := attack(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := &v1alpha1.NodeReport{}
	s.must(s.Get(t.Context(), client.ObjectKey{Name: "b"}, r))
	if len(r.Status.Agents) != 1 || r.Status.Agents[0].Instance != "pod-b" || r.Labels[v1alpha1.LabelMigration] != migrationName {
		t.Errorf("the report of b is %+v", r)
	}
	s.apply(0) // and all others' work goes on
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; !strings.HasPrefix(ip, "172.24.") {
		t.Errorf("service cart is at %s", ip)
	}
	s.expect(s.replumb("rollback", migrationName, "--yes"), 0)
	if err := s.Get(t.Context(), client.ObjectKey{Name: "b"}, r); !apierrors.IsNotFound(err) {
		t.Errorf("after the rollback, the report of b: %v", err)
	}
}

// TestNetworkNamedAfterARoot: root on a node has the CNI configuration name its network such that what is cleaned up is all there is. The pod
// that cleans refuses, names the file, and removes nothing.
func TestNetworkNamedAfterARoot(t *testing.T) {
	calico, _ := nodecleanup.Find("calico")
	for _, name := range []string{"/", "..", ".", "", "../x", "a/../.."} {
		root := t.TempDir()
		leases := filepath.Join(root, "var/lib/cni/networks/other")
		confs := filepath.Join(root, "etc/cni/net.d")
		for _, dir := range []string{leases, confs} {
			if err := os.MkdirAll(dir, 0o750); err != nil {
				t.Fatal(err)
			}
		}
		conf := fmt.Sprintf(`{"name": %q, "plugins": [{"type": "calico"}]}`, name)
		if err := os.WriteFile(filepath.Join(confs, "10-calico.conflist"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := nodecleanup.Host{Root: root}.Clean(calico)
		if err == nil || !strings.Contains(err.Error(), "/etc/cni/net.d/10-calico.conflist names its network") {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := os.Stat(leases); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
