package podnetwork

import (
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
)

// StagedSuffix hides a CNI configuration from runtimes, which load .conf, .conflist and .json
// (ConfFiles in github.com/containernetworking/cni libcni).
const StagedSuffix = ".replumb"

// Staging is the path of a DaemonSet's configuration on nodes, before and after Stage.
type Staging struct{ Container, From, To string }

// installer tells how a DaemonSet names its configuration file: env or folder is set.
type installer struct {
	// env has the name of the file, and usual is that without it.
	env, usual string
	// folder, in an argument, is followed by the name of the file.
	folder string
}

// installers of networks that can be staged. Calico's (writeCNIConfig in cni-plugin/pkg/install)
// removes the file of its usual name when it is given another, so it must not be staged beside a
// Calico in use. Flannel's copies by cp.
func installers() map[v1alpha1.CNIName]installer {
	return map[v1alpha1.CNIName]installer{
		v1alpha1.Calico:  {env: "CNI_CONF_NAME", usual: "10-calico.conflist"},
		v1alpha1.Flannel: {folder: "/etc/cni/net.d/"},
	}
}

// Stage is a copy of a network's DaemonSet whose programs run while its configuration lies ready
// and takes no pods. Exactly one of its containers must be known to write a configuration.
func Stage(set *unstructured.Unstructured, network v1alpha1.CNIName) (*unstructured.Unstructured, Staging, error) {
	how, known := installers()[network]
	if !known {
		return nil, Staging{}, fmt.Errorf("the configuration of %s cannot be kept from taking over", network)
	}
	staged := set.DeepCopy()
	at := []string{"spec", "template", "spec", "initContainers"}
	containers, _, err := unstructured.NestedSlice(staged.Object, at...)
	if err != nil {
		return nil, Staging{}, fmt.Errorf("%s %s/%s: %w", set.GetKind(), set.GetNamespace(), set.GetName(), err)
	}
	var all []Staging
	for _, c := range containers {
		container, ok := c.(map[string]any)
		if !ok {
			continue
		}
		if p, writes := how.stage(container); writes {
			all = append(all, p)
		}
	}
	if len(all) != 1 {
		return nil, Staging{}, fmt.Errorf("%s %s/%s has %d init containers that write the configuration of %s, and must have one",
			set.GetKind(), set.GetNamespace(), set.GetName(), len(all), network)
	}
	return staged, all[0], unstructured.SetNestedSlice(staged.Object, containers, at...)
}

func (i installer) stage(container map[string]any) (Staging, bool) {
	name, _, _ := unstructured.NestedString(container, "name")
	if i.folder != "" {
		return i.stageArgument(name, container)
	}
	return i.stageVariable(name, container)
}

func (i installer) stageArgument(name string, container map[string]any) (Staging, bool) {
	for _, field := range []string{"args", "command"} {
		words, _, err := unstructured.NestedStringSlice(container, field)
		if err != nil {
			continue
		}
		at := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, i.folder) && len(w) > len(i.folder) })
		if at < 0 {
			continue
		}
		p := Staging{Container: name, From: path.Base(words[at]), To: stagedName(path.Base(words[at]))}
		changed := make([]any, len(words))
		for n, w := range words {
			changed[n] = w
		}
		changed[at] = i.folder + p.To
		container[field] = changed
		return p, true
	}
	return Staging{}, false
}

// stageVariable takes a container with CNI_NETWORK_CONFIG or the variable itself for the installer.
func (i installer) stageVariable(name string, container map[string]any) (Staging, bool) {
	env, _, err := unstructured.NestedSlice(container, "env")
	if err != nil {
		return Staging{}, false
	}
	at, writes := -1, false
	for n, e := range env {
		entry, ok := e.(map[string]any)
		if !ok {
			continue
		}
		if entry["name"] == i.env {
			at = n
		}
		writes = writes || entry["name"] == i.env || entry["name"] == "CNI_NETWORK_CONFIG"
	}
	if !writes {
		return Staging{}, false
	}
	from := i.usual
	if at < 0 {
		env, at = append(env, nil), len(env)
	} else if value, ok := env[at].(map[string]any)["value"].(string); ok {
		from = value
	} else { // it comes from elsewhere, and cannot be known
		return Staging{}, false
	}
	p := Staging{Container: name, From: from, To: stagedName(from)}
	env[at] = map[string]any{"name": i.env, "value": p.To}
	container["env"] = env
	return p, true
}

func stagedName(name string) string { return strings.TrimSuffix(name, StagedSuffix) + StagedSuffix }

// KeepPods is a copy of a DaemonSet that leaves its pods alone when its template changes.
func KeepPods(set *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	kept := set.DeepCopy()
	return kept, unstructured.SetNestedMap(
		kept.Object, map[string]any{"type": string(appsv1.OnDeleteDaemonSetStrategyType)}, "spec",
		"updateStrategy",
	)
}

// Marked reports whether the pods of a DaemonSet are let on nodes alone that have LabelBeside.
func Marked(set *unstructured.Unstructured) bool {
	have, _, err := unstructured.NestedMap(set.Object, "spec", "template", "spec", "affinity")
	affinity := &corev1.Affinity{}
	if err != nil || runtime.DefaultUnstructuredConverter.FromUnstructured(have, affinity) != nil ||
		affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return r.Key == v1alpha1.LabelBeside })
	})
}

// WhereMarked is a copy of a DaemonSet that is also confined to nodes with LabelBeside.
func WhereMarked(set *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	marked := set.DeepCopy()
	at := []string{"spec", "template", "spec", "affinity"}
	was := &corev1.Affinity{}
	have, _, err := unstructured.NestedMap(marked.Object, at...)
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(have, was)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", set.GetKind(), set.GetNamespace(), set.GetName(), err)
	}
	affinity, err := runtime.DefaultUnstructuredConverter.ToUnstructured(
		AlsoRequired(was, corev1.NodeSelectorRequirement{Key: v1alpha1.LabelBeside, Operator: corev1.NodeSelectorOpExists}))
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", set.GetKind(), set.GetNamespace(), set.GetName(), err)
	}
	return marked, unstructured.SetNestedMap(marked.Object, affinity, at...)
}
