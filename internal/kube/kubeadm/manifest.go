package kubeadm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	k8syaml "sigs.k8s.io/yaml"
)

// StaticPod is a static pod as kubeadm writes it: one container, whose command is a program and its
// flags (k8s.io/kubernetes cmd/kubeadm/app/phases/controlplane/manifests.go).
type StaticPod struct {
	Text []byte
	Pod  *corev1.Pod
	doc  *document
	file string
}

// ReadStaticPod reads the manifest of a program, such as kube-apiserver.
func ReadStaticPod(file, program string, text []byte) (*StaticPod, error) {
	doc, err := read(file, text)
	if err != nil {
		return nil, err
	}
	m := &StaticPod{Text: text, Pod: &corev1.Pod{}, doc: doc, file: file}
	if err := k8syaml.UnmarshalStrict(text, m.Pod); err != nil {
		return nil, unusual(file, "is not a pod: %v", err)
	}
	containers := m.Pod.Spec.Containers
	switch {
	case m.Pod.Kind != "Pod" || len(containers) != 1:
		return nil, unusual(file, "has %d containers, and kubeadm writes a Pod with one", len(containers))
	case len(containers[0].Command) == 0 || containers[0].Command[0] != program:
		return nil, unusual(file, "does not run %s by its command alone", program)
	case len(containers[0].Args) > 0:
		return nil, unusual(file, "has arguments beside its command")
	}
	return m, nil
}

// Flag is the value of a flag of the program; an error, if it is not there exactly once.
func (m *StaticPod) Flag(name string) (string, error) {
	at, err := m.index(name)
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(m.command()[at], "--"+name+"="), nil
}

func (m *StaticPod) command() []string { return m.Pod.Spec.Containers[0].Command }

// HasFlag reports whether the program has a flag at all.
func (m *StaticPod) HasFlag(name string) bool {
	return slices.ContainsFunc(m.command(), func(arg string) bool {
		return arg == "--"+name || strings.HasPrefix(arg, "--"+name+"=")
	})
}

func (m *StaticPod) index(name string) (int, error) {
	at, found := 0, 0
	for i, arg := range m.command() {
		if strings.HasPrefix(arg, "--"+name+"=") {
			at, found = i, found+1
		} else if arg == "--"+name {
			return 0, unusual(m.file, "has --%s without =", name)
		}
	}
	if found != 1 {
		return 0, unusual(m.file, "has --%s %d times, not once", name, found)
	}
	return at, nil
}

// SetFlags gives flags other values, and proves that the result differs in nothing else.
func (m *StaticPod) SetFlags(flags map[string]string) (*StaticPod, error) {
	now := m
	for _, name := range sortedKeys(flags) {
		edited, err := now.set(name, flags[name])
		if err != nil {
			return nil, err
		}
		now = edited
	}
	return now, nil
}

func (m *StaticPod) set(name, value string) (*StaticPod, error) {
	at, err := m.index(name)
	if err != nil {
		return nil, err
	}
	list := fieldOf(m.doc.root, "spec", "containers")
	if list == nil || len(list.Content) != 1 {
		return nil, unusual(m.file, "does not list its container plainly")
	}
	command := fieldOf(list.Content[0], "command")
	if command == nil || command.Kind != yaml.SequenceNode || at >= len(command.Content) {
		return nil, unusual(m.file, "does not list its command plainly")
	}
	text, err := m.doc.replace(command.Content[at], "--"+name+"="+value)
	if err != nil {
		return nil, err
	}
	edited, err := ReadStaticPod(m.file, m.command()[0], text)
	if err != nil {
		return nil, fmt.Errorf("%s would not be as kubeadm writes it any more: %w", m.file, err)
	}
	expected := m.Pod.DeepCopy()
	expected.Spec.Containers[0].Command[at] = "--" + name + "=" + value
	if !equality.Semantic.DeepEqual(expected, edited.Pod) {
		return nil, unusual(m.file, "would change in more than --%s", name)
	}
	return edited, nil
}

// Diff has the lines that differ from another text of the same file, as "-" and "+" lines.
func Diff(was, is []byte) []string {
	var out []string
	before, after := bytes.Split(was, []byte("\n")), bytes.Split(is, []byte("\n"))
	if len(before) != len(after) {
		return []string{fmt.Sprintf("%d lines become %d", len(before), len(after))}
	}
	for i := range before {
		if !bytes.Equal(before[i], after[i]) {
			out = append(out, "-"+string(before[i]), "+"+string(after[i]))
		}
	}
	return out
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
