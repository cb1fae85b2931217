package lab

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/testing/pki"
	"github.com/replumb/replumb/lab/machine"
)

// controller is one of Cluster API's: its component, its program in there, and where it answers API servers on its machine.
type controller struct {
	component, program string
	port               int
}

func controllers() []controller {
	return []controller{
		{"cluster-api", "core", 9441}, {"cluster-api-bootstrap", "kubeadm", 9442}, {"cluster-api-control-plane", "kubeadm", 9443},
	}
}

func isClusterAPI(component string) bool {
	return slices.ContainsFunc(controllers(), func(c controller) bool { return c.component == component })
}

// Where the controllers have what they need on their machine.
const (
	controllersDir        = "/etc/cluster-api/"
	controllersKubeconfig = controllersDir + "kubeconfig"
)

// startControllers runs Cluster API on the control plane of a lab, beside its API server, which asks them there about each change.
func (l ClusterAPI) startControllers(ctx context.Context, management *Lab) error {
	on, err := management.Machine(management.ControlPlanes()[0])
	if err != nil {
		return err
	}
	authority, err := pki.NewCA("cluster-api")
	if err != nil {
		return err
	}
	serving, err := authority.Issue(pki.Request{CommonName: "cluster-api", Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return err
	}
	admin, err := os.ReadFile(management.Kubeconfig())
	if err != nil {
		return err
	}
	kubeconfig, err := callingAt(admin, fmt.Sprintf("https://127.0.0.1:%d", apiServerPort))
	if err != nil {
		return err
	}
	for path, data := range map[string][]byte{
		controllersKubeconfig: kubeconfig, controllersDir + "tls.crt": serving.Cert, controllersDir + "tls.key": serving.Key,
	} {
		if err := on.WriteFile(ctx, path, data); err != nil {
			return err
		}
	}
	for _, c := range controllers() {
		built := l.Binaries.further[c.component]
		definitions, err := c.definitions(filepath.Join(built, "crd"), authority.Cert)
		if err != nil {
			return err
		}
		if _, err := management.kubectl(ctx, bytes.NewReader(definitions), "apply", "--server-side", "-f", "-"); err != nil {
			return err
		}
		if err := on.Run(ctx, c.runs(built)); err != nil {
			return err
		}
	}
	return nil
}

// runs is the program, without what a lab has no use for: other replicas, metrics, and whoever asks for its health.
func (c controller) runs(built string) machine.Program {
	return machine.Program{Name: c.component, Argv: []string{
		filepath.Join(built, c.program), "--kubeconfig=" + controllersKubeconfig, "--webhook-cert-dir=" + controllersDir,
		fmt.Sprintf("--webhook-port=%d", c.port), "--diagnostics-address=0", "--health-addr=0",
	}}
}

// definitions are what the controller's configuration defines: kinds, and of which requests the API server is to ask it. They are for a Service in the
// cluster, of whose certificates another controller takes care; here the controller is at an address beside the API server.
func (c controller) definitions(config string, authority []byte) ([]byte, error) {
	files, err := definitionsIn(filepath.Join(config, "crd", "bases"))
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for _, file := range append(files, filepath.Join(config, "webhook", "manifests.yaml")) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, document := range bytes.Split(data, []byte("\n---\n")) {
			adapted, err := c.adapted(bytes.TrimPrefix(document, []byte("---\n")), authority)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			fmt.Fprintf(&all, "---\n%s", adapted)
		}
	}
	return all.Bytes(), nil
}

// client is how an API server reaches a path of the controller.
func (c controller) client(path string, authority []byte) map[string]any {
	return map[string]any{"url": fmt.Sprintf("https://127.0.0.1:%d%s", c.port, path), "caBundle": authority}
}

func (c controller) adapted(document, authority []byte) ([]byte, error) {
	var object struct {
		APIVersion string           `json:"apiVersion"`
		Kind       string           `json:"kind"`
		Metadata   map[string]any   `json:"metadata"`
		Spec       map[string]any   `json:"spec,omitempty"`
		Webhooks   []map[string]any `json:"webhooks,omitempty"`
	}
	if err := yaml.Unmarshal(document, &object); err != nil {
		return nil, err
	}
	if object.Kind == "CustomResourceDefinition" {
		object.Metadata["labels"] = map[string]string{"cluster.x-k8s.io/provider": c.component, "cluster.x-k8s.io/v1beta2": "v1beta2"}
		object.Spec["conversion"] = map[string]any{"strategy": "Webhook", "webhook": map[string]any{
			"conversionReviewVersions": []string{"v1"}, "clientConfig": c.client("/convert", authority),
		}}
	} else {
		object.Metadata["name"] = c.component
	}
	for _, webhook := range object.Webhooks {
		path := webhook["clientConfig"].(map[string]any)["service"].(map[string]any)["path"].(string)
		webhook["clientConfig"] = c.client(path, authority)
	}
	return yaml.Marshal(object)
}
