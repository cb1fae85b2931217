package copyrules

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/spec"
)

// dockerHub is the registry of images that name none (github.com/distribution/reference,
// normalize.go).
const dockerHub = "docker.io"

// registry is taken for another.
type registry struct {
	from, to string
	// auth is the entry of the credentials' auths for the registry in to; nil if none were given.
	auth any
}

func readRegistries(swaps []v1alpha1.RegistrySwap, secrets map[v1alpha1.SecretReference]*corev1.Secret) ([]registry, error) {
	var all []registry
	for i, s := range swaps {
		field := fmt.Sprintf("spec.mirror.copy.registries[%d]", i)
		for name, value := range map[string]string{".from": s.From, ".to": s.To} {
			if value == "" || strings.ContainsAny(value, " \t\n@") || strings.Contains(value, "://") || strings.HasSuffix(value, "/") {
				return nil, &spec.Error{
					Field: field + name, Problem: fmt.Sprintf("%q is not how the name of an image begins", value),
					Hint: "write it such as registry.example.com/shop",
				}
			}
		}
		found := registry{from: s.From, to: s.To}
		if s.Credentials != nil {
			var err error
			if found.auth, err = readAuth(field+".credentials", secrets[*s.Credentials], *s.Credentials, s.To); err != nil {
				return nil, err
			}
		}
		all = append(all, found)
	}
	return all, nil
}

func readAuth(field string, secret *corev1.Secret, ref v1alpha1.SecretReference, to string) (any, error) {
	wrong := func(problem string) error {
		return &spec.Error{
			Field: field, Problem: fmt.Sprintf("secret %s/%s %s", ref.Namespace, ref.Name, problem),
			Hint: "kubectl create secret docker-registry makes one",
		}
	}
	if secret == nil {
		return nil, wrong("is not there")
	}
	config := map[string]any{}
	if json.Unmarshal(secret.Data[corev1.DockerConfigJsonKey], &config) != nil {
		return nil, wrong("has no " + corev1.DockerConfigJsonKey + " that can be read")
	}
	for host, auth := range objects.Map(config["auths"]) {
		if registryHost(host) == registryHost(to) {
			return auth, nil
		}
	}
	return nil, wrong("has no credentials for " + registryHost(to))
}

func registryHost(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	host, _, _ := strings.Cut(name, "/")
	if host == "index.docker.io" || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return dockerHub
	}
	return host
}

func (r *Rules) swapRegistries(k objects.ResourceKind, o *unstructured.Unstructured) {
	if len(r.registries) == 0 {
		return
	}
	pod := objects.PodSpec(k, o)
	for _, c := range objects.Containers(pod) {
		if image, ok := c["image"].(string); ok {
			c["image"] = r.image(image)
		}
	}
	for _, v := range objects.Slice(pod["volumes"]) {
		source := objects.Inside(objects.Map(v), "image")
		if image, ok := source["reference"].(string); ok {
			source["reference"] = r.image(image)
		}
	}
}

func (r *Rules) image(image string) string {
	for _, s := range r.registries {
		for _, name := range []string{image, inFull(image)} {
			rest, ok := strings.CutPrefix(name, s.from)
			if ok && (rest == "" || strings.ContainsAny(rest[:1], "/:@")) {
				return s.to + rest
			}
		}
	}
	return image
}

// inFull names the registry of an image that does not.
func inFull(image string) string {
	host, _, path := strings.Cut(image, "/")
	switch {
	case !path:
		return dockerHub + "/library/" + image
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return dockerHub + "/" + image
	}
	return image
}

// addCredentials gives a Secret that has credentials for a registry those for what takes its place.
func (r *Rules) addCredentials(o *unstructured.Unstructured) error {
	if typ, _, _ := unstructured.NestedString(o.Object, "type"); typ != string(corev1.SecretTypeDockerConfigJson) {
		return nil
	}
	var swaps []registry
	for _, s := range r.registries {
		if s.auth != nil {
			swaps = append(swaps, s)
		}
	}
	if len(swaps) == 0 {
		return nil
	}
	encoded, _, _ := unstructured.NestedString(o.Object, "data", corev1.DockerConfigJsonKey)
	body, err := base64.StdEncoding.DecodeString(encoded)
	config := map[string]any{}
	if err != nil || json.Unmarshal(body, &config) != nil {
		// Its text is not for errors.
		return fmt.Errorf("its %s cannot be read", corev1.DockerConfigJsonKey)
	}
	auths := objects.Map(config["auths"])
	changed := false
	for _, s := range swaps {
		for host := range auths {
			if registryHost(host) == registryHost(s.from) {
				auths[registryHost(s.to)] = s.auth
				changed = true
				break
			}
		}
	}
	if !changed {
		return nil
	}
	if body, err = json.Marshal(config); err != nil {
		return fmt.Errorf("its %s cannot be written", corev1.DockerConfigJsonKey)
	}
	return unstructured.SetNestedField(o.Object, base64.StdEncoding.EncodeToString(body), "data", corev1.DockerConfigJsonKey)
}
