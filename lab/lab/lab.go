// Package lab runs a real multi-node Kubernetes cluster on one Linux machine: etcd, API server, controller manager,
// scheduler, containerd, kubelet, kube-proxy and CoreDNS as upstream builds them, each node with a network of its
// own. It needs root, and no container engine, registry or virtual machine.
//
// A lab is found again by its name alone. All its processes live in one control group, all its files in one folder,
// and its networks and mounts belong to its processes; so it can be taken down whatever happened to who made it.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/lab/machine"
)

// stateRoot holds a folder per lab.
const stateRoot = "/var/lib/replumb-lab"

// cgroupPrefix begins the name of each lab's control group.
const cgroupPrefix = "replumb-lab-"

// Lab is a cluster that has been brought up.
type Lab struct {
	Topology Topology `json:"topology"`
	// FabricOf is the lab whose fabric the machines are plugged into; empty, if the lab has its own.
	FabricOf string `json:"fabricOf,omitempty"`
	// Port is where the host reaches the Kubernetes API, on the loopback address: whichever API server is ready.
	Port int `json:"port"`
	// Members are the machines of the cluster there are now, and Made how many of each role there ever were.
	Members  []Member     `json:"members"`
	Made     map[Role]int `json:"made"`
	Binaries binaries     `json:"binaries"`
	// Images is the archive of what every node is given.
	Images string `json:"images"`
	// SiteCA is the authority that has signed, and signs, what the lab serves to people by name over TLS: its image registry, and
	// what cert-manager issues. PEM.
	SiteCA []byte `json:"siteCA,omitempty"`
	// RegistryPassword is of who may pull and push images. See Registry.
	RegistryPassword string `json:"registryPassword,omitempty"`
}

// binaries are the folders of the components' executables.
type binaries struct {
	kubernetes, kubeadm, containerd, cni, calico, flannel, cilium, podnet, registry string
	// further are those of components that Addons are made of, by name.
	further map[string]string
}

// MarshalJSON and UnmarshalJSON keep the folders in the lab's state file.
func (b binaries) MarshalJSON() ([]byte, error) {
	all := map[string]string{
		"kubernetes": b.kubernetes, "kubeadm": b.kubeadm, "containerd": b.containerd, "cni": b.cni, "calico": b.calico, "flannel": b.flannel,
		"cilium": b.cilium, "podnet": b.podnet, "registry": b.registry,
	}
	maps.Copy(all, b.further)
	return json.Marshal(all)
}

// UnmarshalJSON is the counterpart of MarshalJSON.
func (b *binaries) UnmarshalJSON(data []byte) error {
	var m map[string]string
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	*b = binaries{
		kubernetes: m["kubernetes"], kubeadm: m["kubeadm"], containerd: m["containerd"], cni: m["cni"], calico: m["calico"], flannel: m["flannel"],
		cilium: m["cilium"], podnet: m["podnet"], registry: m["registry"], further: m,
	}
	return nil
}

// RunMachineIfAsked must be the first call of main, or TestMain, of each program that calls Up: the machines of a lab
// are that program started again.
func RunMachineIfAsked() { machine.RunIfAsked() }

// Open returns the lab of that name, which some process has brought up before.
func Open(name string) (*Lab, error) {
	data, err := os.ReadFile(filepath.Join(stateDir(name), "lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		hint := "replumb-lab up --name " + name
		if names := List(); len(names) > 0 {
			hint = "there is " + strings.Join(names, ", ")
		}
		return nil, fmt.Errorf("no lab is called %q\nhint: %s", name, hint)
	}
	if err != nil {
		return nil, err
	}
	l := &Lab{}
	if err := json.Unmarshal(data, l); err != nil {
		return nil, fmt.Errorf("state of lab %s: %w", name, err)
	}
	return l, nil
}

// List returns the names of all labs on this machine, whole or not.
func List() []string {
	entries, _ := os.ReadDir(stateRoot)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func stateDir(name string) string { return filepath.Join(stateRoot, name) }
func cgroupOf(name string) string { return "/" + cgroupPrefix + name }
func (l *Lab) dir(parts ...string) string {
	return filepath.Join(append([]string{stateDir(l.Topology.Name)}, parts...)...)
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (l *Lab) Kubeconfig() string { return l.dir("kubeconfig") }

// Kubectl is the path of a kubectl of the cluster's version.
func (l *Lab) Kubectl() string { return filepath.Join(l.Binaries.kubernetes, "kubectl") }

// RESTConfig is the administrator's access to the cluster, without client-side rate limits.
func (l *Lab) RESTConfig() *rest.Config {
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig())
	if err != nil {
		panic(fmt.Sprintf("kubeconfig of lab %s: %v", l.Topology.Name, err)) // we wrote it ourselves
	}
	config.QPS = -1
	return config
}

// Client is a client with the administrator's rights.
func (l *Lab) Client() kubernetes.Interface { return kubernetes.NewForConfigOrDie(l.RESTConfig()) }

// NodeNames are the names of the worker nodes.
func (l *Lab) NodeNames() []string { return namesOf(l.with(Worker)) }

// ProxyModes are the proxy modes of the worker nodes by name.
func (l *Lab) ProxyModes() map[string]string {
	modes := map[string]string{}
	for _, m := range l.with(Worker) {
		modes[m.Name] = string(m.Proxy)
	}
	return modes
}

// ControlPlanes are the names of the machines that run an API server.
func (l *Lab) ControlPlanes() []string { return namesOf(l.with(ControlPlane)) }

// APIServers are the addresses, as host:port, at which the host reaches the API server of each control plane, in the
// order of ControlPlanes. The kubeconfig's address leads to whichever is ready.
func (l *Lab) APIServers() []string {
	var addresses []string
	for _, m := range l.with(ControlPlane) {
		addresses = append(addresses, m.fromHost())
	}
	return addresses
}

// Machines are the names of the lab's machines: the fabric or what leads there, the control planes, the nodes, and those of its
// Edge, also if these are another lab's.
func (l *Lab) Machines() []string {
	return slices.Concat(
		[]string{l.Fabrics().forwarder()},
		l.ControlPlanes(),
		l.NodeNames(),
		namesOf(l.with(edgeRoles()...)),
		l.Fabrics().borrowed(),
	)
}

// Machine returns the machine of that name, or an error that lists those there are.
func (l *Lab) Machine(name string) (*machine.Handle, error) {
	if !slices.Contains(l.Machines(), name) {
		return nil, fmt.Errorf("lab %s has no machine %q\nhint: it has %s",
			l.Topology.Name, name, strings.Join(l.Machines(), ", "))
	}
	return machine.Open(l.machineSpec(name)), nil
}

func (l *Lab) machineSpec(name string) machine.Spec {
	lab := l.Topology.Name
	if name == fabricName || slices.Contains(l.Fabrics().borrowed(), name) {
		lab = l.Fabrics().owner()
	}
	return machine.Spec{
		Name:   name,
		Root:   filepath.Join(stateDir(lab), name),
		CGroup: cgroupOf(lab) + "/" + name + "/system",
		Keep:   []string{stateDir(lab)},
	}
}

// podCGroup is the group that the node's kubelet puts its pods into.
func (l Workers) podCGroup(node string) string {
	return cgroupOf(l.Topology.Name) + "/" + node + "/pods"
}

// Exec runs argv on a machine and returns its standard output; standard error is part of the error.
func (l *Lab) Exec(ctx context.Context, machineName string, argv ...string) ([]byte, error) {
	m, err := l.Machine(machineName)
	if err != nil {
		return nil, err
	}
	cmd, err := m.Command(ctx, argv...)
	if err != nil {
		return nil, err
	}
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s on %s: %w: %s", strings.Join(argv, " "), machineName, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return out, err
}

// ExecPod runs argv in a pod's first container and returns its standard output.
func (l *Lab) ExecPod(ctx context.Context, namespace, pod string, argv ...string) ([]byte, error) {
	return l.kubectl(ctx, nil, append([]string{"exec", "-n", namespace, pod, "--"}, argv...)...)
}

func (l *Lab) kubectl(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, l.Kubectl(), append([]string{"--kubeconfig", l.Kubeconfig()}, args...)...)
	cmd.Stdin = stdin
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("kubectl %s: %s", args[0], strings.TrimSpace(string(exit.Stderr)))
	}
	return out, err
}
