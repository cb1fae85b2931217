// Package manifests reads the objects of networks: those that are to be applied, and those that a
// cluster has.
package manifests

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// ManifestSet are the objects of a network, and what they say.
type ManifestSet struct {
	// Objects in the order in which they are applied.
	Objects []*unstructured.Unstructured
	// Networks are what their DaemonSets are; one, if all is well.
	Networks []v1alpha1.CNIName
	// Ranges are what pods get their addresses from.
	Ranges []netip.Prefix
	// Images they run.
	Images []string
	// Enforces says that NetworkPolicies hold with them.
	Enforces bool
	// Portmap says that their CNI configuration has the plugin for hostPorts.
	Portmap bool
	// Hash of the objects.
	Hash string
}

// Error says what is wrong in which file.
type Error struct {
	// File, and which of its documents, from 1; 0 is the whole of it.
	File     string
	Document int
	Err      error
}

func (e *Error) Error() string {
	if e.Document == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s, document %d: %v", e.File, e.Document, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Read reads files, and all .yaml, .yml and .json files of folders, in the order of their names. It
// fails with an *Error on duplicate keys, on what is no object, and on objects that are there
// twice.
func Read(paths []string) (*ManifestSet, error) {
	var all []*unstructured.Unstructured
	seen := map[string]string{}
	for _, path := range paths {
		files, err := filesOf(path)
		if err != nil {
			return nil, &Error{File: path, Err: err}
		}
		for _, file := range files {
			body, err := os.ReadFile(file)
			if err != nil {
				return nil, &Error{File: file, Err: errors.Unwrap(err)}
			}
			objects, err := Decode(file, body)
			if err != nil {
				return nil, err
			}
			for _, o := range objects {
				if other, twice := seen[KeyOf(o).Full()]; twice {
					return nil, &Error{File: file, Err: fmt.Errorf("%s is in %s too", KeyOf(o), other)}
				}
				seen[KeyOf(o).Full()] = file
			}
			all = append(all, objects...)
		}
	}
	return New(all)
}

func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			files = append(files, name)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = errors.New("holds no .yaml, .yml or .json file")
	}
	return files, err
}

// Decode reads the documents of one file. A List counts as its items.
func Decode(file string, body []byte) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(body)))
	for number := 1; ; number++ {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, &Error{File: file, Document: number, Err: err}
		}
		objects, err := decodeOne(doc)
		if err != nil {
			return nil, &Error{File: file, Document: number, Err: err}
		}
		all = append(all, objects...)
	}
}

func decodeOne(doc []byte) ([]*unstructured.Unstructured, error) {
	asJSON, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, err
	}
	if string(asJSON) == "null" { // nothing but comments
		return nil, nil
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(asJSON); err != nil {
		return nil, err
	}
	if !o.IsList() {
		if o.GetName() == "" || o.GetAPIVersion() == "" {
			return nil, fmt.Errorf("%s has no name or no apiVersion", o.GetKind())
		}
		return []*unstructured.Unstructured{o}, nil
	}
	var all []*unstructured.Unstructured
	err = o.EachListItem(func(item runtime.Object) error {
		u, ok := item.(*unstructured.Unstructured)
		if !ok || u.GetName() == "" || u.GetKind() == "" {
			return errors.New("an item of the list is no object")
		}
		all = append(all, u)
		return nil
	})
	return all, err
}

// New sorts objects and reads what they say.
func New(objects []*unstructured.Unstructured) (*ManifestSet, error) {
	m := &ManifestSet{Objects: slices.Clone(objects)}
	slices.SortStableFunc(m.Objects, func(a, b *unstructured.Unstructured) int { return rankOf(a) - rankOf(b) })
	hash := sha256.New()
	enc := json.NewEncoder(hash)
	for _, o := range m.Objects {
		if err := enc.Encode(o.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", KeyOf(o), err)
		}
		if err := m.take(o); err != nil {
			return nil, fmt.Errorf("%s: %w", KeyOf(o), err)
		}
	}
	m.Hash = hex.EncodeToString(hash.Sum(nil))[:16]
	slices.Sort(m.Images)
	m.Images = slices.Compact(m.Images)
	return m, nil
}

func (m *ManifestSet) take(o *unstructured.Unstructured) error {
	switch o.GroupVersionKind().GroupKind() {
	case appsv1.SchemeGroupVersion.WithKind("DaemonSet").GroupKind():
		ds, err := As[appsv1.DaemonSet](o)
		if err != nil {
			return err
		}
		m.addPod(&ds.Spec.Template.Spec)
		if n := podnetwork.Of(ds); n != "" {
			m.Networks = append(m.Networks, n)
		}
		m.AddRanges(poolOf(&ds.Spec.Template.Spec))
	case appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind():
		d, err := As[appsv1.Deployment](o)
		if err != nil {
			return err
		}
		m.addPod(&d.Spec.Template.Spec)
	case corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind():
		cm, err := As[corev1.ConfigMap](o)
		if err != nil {
			return err
		}
		m.AddRanges(RangesOf(cm))
		for _, text := range cm.Data {
			m.Portmap = m.Portmap || strings.Contains(text, `"portmap"`)
		}
	case schema.GroupKind{Group: CalicoGroup, Kind: "IPPool"}:
		cidr, _, _ := unstructured.NestedString(o.Object, "spec", "cidr")
		m.AddRanges(cidr)
	}
	return nil
}

// ranges of text, separated by commas. Other words are left to the program that
// reads them.
func (m *ManifestSet) AddRanges(text string) {
	for part := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(part)); err == nil && !slices.Contains(m.Ranges, p) {
			m.Ranges = append(m.Ranges, p)
		}
	}
}

func (m *ManifestSet) addPod(s *corev1.PodSpec) {
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		m.Images = append(m.Images, c.Image)
		// Flannel's chart can bring along who enforces policies (netpol.enabled).
		m.Enforces = m.Enforces || Enforces(c)
	}
}

// DaemonSet is the DaemonSet that is the network; nil, if there is none.
func (m *ManifestSet) DaemonSet() *appsv1.DaemonSet {
	for _, o := range m.Objects {
		if o.GetKind() != "DaemonSet" {
			continue
		}
		if ds, err := As[appsv1.DaemonSet](o); err == nil && podnetwork.Of(ds) != "" {
			return ds
		}
	}
	return nil
}

// CiliumConfig is the configuration of Cilium; nil, if there is none.
func (m *ManifestSet) CiliumConfig() *unstructured.Unstructured {
	i := slices.IndexFunc(m.Objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "ConfigMap" && o.GetName() == podnetwork.CiliumConfig
	})
	if i < 0 {
		return nil
	}
	return m.Objects[i]
}

// CiliumSetting is a setting of Cilium's configuration; empty, if it is not set.
func (m *ManifestSet) CiliumSetting(key string) string {
	o := m.CiliumConfig()
	if o == nil {
		return ""
	}
	value, _, _ := unstructured.NestedString(o.Object, "data", key)
	return value
}

// Key identifies an object of any kind.
type Key struct {
	schema.GroupKind
	namespace, name string
}

// KeyOf identifies an object.
func KeyOf(o *unstructured.Unstructured) Key {
	return Key{o.GroupVersionKind().GroupKind(), o.GetNamespace(), o.GetName()}
}

func (k Key) String() string {
	if k.namespace == "" {
		return k.Kind + " " + k.name
	}
	return k.Kind + " " + k.namespace + "/" + k.name
}

func (k Key) Slug() string {
	out := k.Kind + "/"
	if k.namespace != "" {
		out += k.namespace + "/"
	}
	return out + k.name
}

// Full tells kinds of different groups apart.
func (k Key) Full() string { return k.Group + "/" + k.String() }

// Parallel is how many objects are changed at once.
const Parallel = 16

// rank is the place of an object in the order in which objects are applied.
type rank int

const (
	definitions rank = iota
	namespaces
	rights
	configuration
	resources
	programs
)

func (r rank) String() string {
	return [...]string{"Definitions", "Namespaces", "Rights", "Configuration", "Custom resources", "Programs"}[r]
}

// atOnce is how many objects are written at once. An API server makes its whole OpenAPI document
// again for each definition: sixteen at once took two processors for five seconds, in which cluster
// DNS beside it did not answer.
func (r rank) atOnce() int {
	if r == definitions {
		return 2
	}
	return Parallel
}

func rankOf(o *unstructured.Unstructured) int { return int(KeyOf(o).rank()) }

func (k Key) rank() rank {
	switch {
	case k.Kind == "CustomResourceDefinition":
		return definitions
	case k.Kind == "Namespace":
		return namespaces
	case k.Kind == "ServiceAccount" || k.Group == "rbac.authorization.k8s.io" || k.Kind == "PriorityClass":
		return rights
	case k.Kind == "DaemonSet" || k.Kind == "Deployment" || k.Kind == "StatefulSet" || k.Kind == "Job":
		return programs
	case k.Group == "" || k.Group == "policy" || strings.HasSuffix(k.Group, ".k8s.io"):
		return configuration
	}
	return resources
}

// Groups have a step for each object that step has one for, in the order in which objects are
// applied, or the reverse.
func Groups(
	objects []*unstructured.Unstructured, d engine.Direction, step func(*unstructured.Unstructured) engine.Step,
) []engine.Group {
	var out []engine.Group
	for i := range programs + 1 {
		r := i
		if d == engine.Backward {
			r = programs - i
		}
		var steps []engine.Step
		for _, o := range objects {
			if KeyOf(o).rank() != r {
				continue
			}
			if s := step(o); s != nil {
				steps = append(steps, s)
			}
		}
		out = append(out, engine.AtOnce(r.atOnce(), r.String(), steps...)...)
	}
	return out
}

// HasPods reports whether an object has pods of its own.
func HasPods(o *unstructured.Unstructured) bool { return KeyOf(o).rank() == programs }

// As is an object as one of its Go type.
func As[T any](o *unstructured.Unstructured) (*T, error) {
	out := new(T)
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out)
	return out, err
}
