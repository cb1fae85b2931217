package apiserver

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// storePod is the mirror pod of an API server: with kubeadm's labels, or kOps'.
func storePod(label, host string, flags ...string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "kube-apiserver-" + host, Labels: map[string]string{label: "kube-apiserver"},
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"},
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Command: append([]string{"kube-apiserver"}, flags...)}}},
		Status: corev1.PodStatus{HostIP: host},
	}
}

// TestStores reads the flags as kubeadm writes them, with its etcd beside and with one elsewhere,
// and as kOps does.
func TestStores(t *testing.T) {
	for _, tt := range []struct {
		name           string
		pod            corev1.Pod
		main           []string
		resources      []string
		beside, events bool
	}{
		{"kubeadm", storePod("component", "10.1.0.11", "--etcd-servers=https://127.0.0.1:2379"), []string{"https://127.0.0.1:2379"}, nil, true, false},
		{
			"kubeadm, etcd elsewhere",
			storePod("component", "10.1.0.11", "--etcd-servers=https://10.9.0.1:2379,https://10.9.0.2:2379"),
			[]string{"https://10.9.0.1:2379", "https://10.9.0.2:2379"},
			nil, false, false,
		},
		{
			"kOps",
			storePod("k8s-app", "10.1.0.11", "--etcd-servers-overrides=/events#https://127.0.0.1:4002", "--etcd-servers=https://127.0.0.1:4001"),
			[]string{"https://127.0.0.1:4001"},
			[]string{"/events"},
			true, true,
		},
		{
			"events elsewhere, of several servers",
			storePod("k8s-app", "10.1.0.11", "--etcd-servers", "https://10.1.0.11:2379",
				"--etcd-servers-overrides", "/events#https://10.9.0.1:2379;https://10.9.0.2:2379,apps/deployments#https://10.9.0.3:2379"),
			[]string{"https://10.1.0.11:2379"},
			[]string{"/events", "apps/deployments"},
			true, false,
		},
		{
			"that of another API server", storePod("component", "10.1.0.11", "--etcd-servers=https://10.1.0.12:2379"),
			[]string{"https://10.1.0.12:2379"},
			nil, true, false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := StoresOf([]corev1.Pod{tt.pod})
			if len(all) != 1 {
				t.Fatalf("found %v", all)
			}
			s, others := &all[0], netip.MustParseAddr("10.1.0.12")
			if !slices.Equal(s.Main, tt.main) || !slices.Equal(s.Resources(), tt.resources) {
				t.Errorf("found %v and %v", s.Main, s.Others)
			}
			if s.Beside(s.Main, others) != tt.beside || s.Beside(s.Others[Events], others) != tt.events {
				t.Errorf("beside: %t, of events %t", s.Beside(s.Main, others), s.Beside(s.Others[Events], others))
			}
		})
	}
	none := []corev1.Pod{storePod("component", "10.1.0.11"), {ObjectMeta: metav1.ObjectMeta{Name: "other"}}}
	none = append(none, storePod("component", "10.1.0.13", "--etcd-servers=https://127.0.0.1:2379"))
	none[2].Annotations = nil // not one of a kubelet's own
	if got := StoresOf(none); len(got) > 0 {
		t.Error(fmt.Sprint("found ", got))
	}
}
