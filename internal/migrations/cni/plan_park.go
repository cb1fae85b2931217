package cni

import (
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/spec/window"
)

// isNetwork reports whether an object of the manifests is the DaemonSet that runs the network.
func (s *Survey) isNetwork(o *unstructured.Unstructured) bool {
	set := s.Manifests.set()
	return set != nil && o.GetKind() == "DaemonSet" && o.GetNamespace() == set.Namespace && o.GetName() == set.Name
}

// opened reports whether the programs of the new network start on every node by now, those that join among them.
func (s *Survey) opened() bool {
	return s.Manifests != nil && slices.ContainsFunc(s.Manifests.Objects, func(o *unstructured.Unstructured) bool {
		have := s.Present[keyOf(o).full()]
		return s.isNetwork(o) && have != nil && have.GetLabels()[v1alpha1.LabelMigration] == s.Spec.Name && !podnetwork.Marked(have)
	})
}

// parked are the objects of the manifests, changed so that the network does not take over. Unless it is open, its programs start on marked nodes
// alone. To open it restarts none of them.
func (s *Survey) parked(open bool) ([]*unstructured.Unstructured, error) {
	if s.Manifests == nil {
		return nil, nil
	}
	objects := slices.Clone(s.Manifests.Objects)
	for i, o := range objects {
		var err error
		main := s.isNetwork(o)
		switch {
		case s.Spec.To == v1alpha1.Cilium:
			objects[i], err = podnetwork.StageCilium(o)
		case main:
			objects[i], _, err = podnetwork.Stage(o, s.Spec.To)
		}
		if err == nil && main {
			objects[i], err = podnetwork.KeepPods(objects[i])
		}
		if err == nil && main && !open {
			objects[i], err = podnetwork.WhereMarked(objects[i])
		}
		if err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// held are the objects of the manifests that are applied in another form as long as both networks run.
func (s *Survey) held() []*unstructured.Unstructured {
	parked, err := s.parked(true)
	if err != nil { // a finding, which blocks
		return nil
	}
	var out []*unstructured.Unstructured
	for i, o := range parked {
		if !reflect.DeepEqual(o.Object, s.Manifests.Objects[i].Object) {
			out = append(out, s.Manifests.Objects[i])
		}
	}
	return out
}

// park installs the new network beside the old one. Nothing gets an address of it yet.
func (p *Planner) park() []engine.Group {
	objects, err := p.Survey.parked(p.Survey.opened())
	if err != nil || len(objects) == 0 || p.over() { // an error is a finding, which blocks
		return nil
	}
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 && !p.Survey.begun() {
		groups = engine.InOrder(window.NewStep("window", windows, p.Tools.Now))
	}
	groups = append(groups, engine.InOrder(p.status().begin("Record that the new network is installed beside the old one"))...)
	groups = append(groups, p.applyAll(objects)...)
	for _, round := range p.rounds(p.Survey.ordered(forward, func(*corev1.Node) bool { return true })) {
		groups = append(groups, p.startRound(round, setsOf(objects))...)
	}
	groups = append(groups, p.open()...)
	groups = append(groups, p.cross()...)
	var ready []engine.Step
	for _, node := range p.Survey.NodeNames() {
		ready = append(ready, p.standing(node))
	}
	return append(groups, engine.AtOnce(parallel, "Nodes", ready...)...)
}

// open has the programs of the new network start on nodes that join from now on: their pods are called by pods of both networks.
func (p *Planner) open() []engine.Group {
	objects, err := p.Survey.parked(true)
	if err != nil || p.Survey.opened() {
		return nil
	}
	for _, o := range objects {
		if p.Survey.isNetwork(o) {
			about := fmt.Sprintf("Let %s start on nodes that join", p.spec().To)
			return engine.InOrder(p.Tools.applyAs("install/open", about, p.spec().Name, o, true))
		}
	}
	return nil
}
