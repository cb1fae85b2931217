package kubeproxy

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/inventory"
)

// modeFlag names the mode where there is no file: with one, kube-proxy passes it over
// (cmd/kube-proxy/app/options.go in k8s.io/kubernetes).
const (
	modeFlag   = "--proxy-mode"
	configFlag = "--config"
)

// place is where a kube-proxy has its mode from: a key of a ConfigMap, or without one its flags.
type place struct{ configMap, key string }

// modeOf is the mode that a setting of kube-proxy stands for on Linux.
func modeOf(configured string) v1alpha1.KubeProxyMode {
	if configured == "" {
		return v1alpha1.KubeProxyIPTables
	}
	return v1alpha1.KubeProxyMode(strings.ToLower(configured))
}

// proxyIn is the container that runs kube-proxy.
func proxyIn(spec *corev1.PodSpec) *corev1.Container {
	for i := range spec.Containers {
		one := &corev1.PodSpec{Containers: spec.Containers[i : i+1]}
		if len(inventory.ProxiesOf("", one)) > 0 {
			return &spec.Containers[i]
		}
	}
	return nil
}

// flagOf is the value of a flag among words; -1 if it is not there, else where it begins.
func flagOf(words []string, name string) (value string, at int) {
	for i, w := range words {
		if v, ok := strings.CutPrefix(w, name+"="); ok {
			return v, i
		}
		if w == name && i+1 < len(words) {
			return words[i+1], i
		}
	}
	return "", -1
}

// placeOf finds where the mode is named. It fails for a file that is in no ConfigMap.
func placeOf(spec *corev1.PodSpec) (place, error) {
	c := proxyIn(spec)
	file, at := flagOf(slices.Concat(c.Command, c.Args), configFlag)
	if at < 0 {
		return place{}, nil
	}
	var in *corev1.VolumeMount
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		if rest, ok := strings.CutPrefix(file, m.MountPath); ok && (rest == "" || rest[0] == '/') && (in == nil || len(m.MountPath) > len(in.MountPath)) {
			in = m
		}
	}
	if in != nil {
		for _, v := range spec.Volumes {
			if v.Name == in.Name && v.ConfigMap != nil {
				return place{v.ConfigMap.Name, keyOf(v.ConfigMap, path.Join(in.SubPath, strings.TrimPrefix(file, in.MountPath)))}, nil
			}
		}
	}
	return place{}, fmt.Errorf("its configuration %s is in no ConfigMap", file)
}

func keyOf(v *corev1.ConfigMapVolumeSource, file string) string {
	file = strings.TrimPrefix(file, "/")
	for _, item := range v.Items {
		if item.Path == file {
			return item.Key
		}
	}
	return file
}

func parseConfig(text string) (*proxyv1alpha1.KubeProxyConfiguration, error) {
	c := &proxyv1alpha1.KubeProxyConfiguration{}
	if err := yaml.Unmarshal([]byte(text), c); err != nil {
		return nil, fmt.Errorf("reading the configuration of kube-proxy: %w", err)
	}
	return c, nil
}

// configuredIn is the mode that a configuration file names.
func configuredIn(text string) (string, error) {
	c, err := parseConfig(text)
	if err != nil {
		return "", err
	}
	return string(c.Mode), nil
}

var modeLine = regexp.MustCompile(`(?m)^mode:.*$`)

// withMode is a configuration file with another mode. Everything else stays, comments too.
func withMode(text, mode string) (string, error) {
	line := "mode: " + mode
	if mode == "" {
		line = `mode: ""`
	}
	out := strings.TrimRight(text, "\n") + "\n" + line + "\n"
	if modeLine.MatchString(text) {
		out = modeLine.ReplaceAllLiteralString(text, line)
	}
	have, err := configuredIn(out)
	if err == nil && have != mode {
		err = errors.New("its configuration has no line of its own for mode: write it as YAML, as kubeadm does")
	}
	return out, err
}

// setFlag has a container's command line name the mode.
func setFlag(c *corev1.Container, mode string) {
	for _, words := range []*[]string{&c.Command, &c.Args} {
		_, at := flagOf(*words, modeFlag)
		switch {
		case at < 0:
			continue
		case (*words)[at] == modeFlag:
			(*words)[at+1] = mode
		default:
			(*words)[at] = modeFlag + "=" + mode
		}
		return
	}
	if len(c.Args) > 0 || len(c.Command) == 0 {
		c.Args = append(c.Args, modeFlag+"="+mode)
		return
	}
	c.Command = append(c.Command, modeFlag+"="+mode)
}
