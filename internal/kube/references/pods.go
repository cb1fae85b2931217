package references

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// isProxy goes by golang.org/x/net/http/httpproxy and curl(1).
func isProxy(e corev1.EnvVar) bool {
	names := []string{"http_proxy", "https_proxy", "all_proxy"}
	return slices.Contains(names, strings.ToLower(e.Name)) && (e.Value != "" || e.ValueFrom != nil)
}

func (w *walk) template(at string, t *corev1.PodTemplateSpec) {
	w.annotations(at+".metadata.annotations", t.Annotations)
	w.podSpec(at+".spec", &t.Spec)
}

func (w *walk) podSpec(at string, spec *corev1.PodSpec) {
	for i := range spec.InitContainers {
		w.container(fmt.Sprintf("%s.initContainers[%s]", at, spec.InitContainers[i].Name), &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		w.container(fmt.Sprintf("%s.containers[%s]", at, spec.Containers[i].Name), &spec.Containers[i])
	}
	for i, h := range spec.HostAliases {
		w.text(fmt.Sprintf("%s.hostAliases[%d].ip", at, i), h.IP)
	}
	if spec.DNSConfig != nil {
		w.texts(at+".dnsConfig.nameservers", spec.DNSConfig.Nameservers)
	}
	for i := range spec.Volumes {
		v, field := &spec.Volumes[i], fmt.Sprintf("%s.volumes[%s]", at, spec.Volumes[i].Name)
		if v.NFS != nil {
			w.text(field+".nfs.server", v.NFS.Server)
		}
		if v.ISCSI != nil {
			w.text(field+".iscsi.targetPortal", v.ISCSI.TargetPortal)
			w.texts(field+".iscsi.portals", v.ISCSI.Portals)
		}
		if v.CSI != nil {
			w.values(field+".csi.volumeAttributes", v.CSI.VolumeAttributes)
		}
	}
}

func (w *walk) container(at string, c *corev1.Container) {
	w.texts(at+".command", c.Command)
	w.texts(at+".args", c.Args)
	proxied := slices.ContainsFunc(c.Env, isProxy)
	for _, e := range c.Env {
		bypass := proxied && strings.EqualFold(e.Name, "no_proxy")
		for _, value := range w.scanner.Values(e.Value) {
			w.note(Reference{
				Object: w.name, Field: fmt.Sprintf("%s.env[%s]", at, e.Name), Value: value,
				Bypass: bypass && !w.scanner.bypassed(e.Value, isRange(value)),
			})
		}
	}
}
