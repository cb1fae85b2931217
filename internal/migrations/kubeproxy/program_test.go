package kubeproxy

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/proxyrules"
)

// TestCopyOfProgram: a node that was restarted before its turn is told, one without rules ends the
// run, and one that a run goes on with is neither.
func TestCopyOfProgram(t *testing.T) {
	for name, tt := range map[string]struct {
		found         []string
		remark, fails string
	}{
		"its turn":         {[]string{"kube-proxy says iptables", "iptables"}, "", ""},
		"a run goes on":    {[]string{proxyrules.EarlierCopy, "nftables"}, "", ""},
		"while it starts":  {[]string{proxyrules.EarlierCopy}, "", ""},
		"before its turn":  {[]string{"nftables"}, "was restarted before its turn", ""},
		"other tables":     {nil, "", "has no rules"},
		"in a third mode":  {[]string{"kube-proxy says ipvs"}, "", "it says that it has mode ipvs"},
		"rules of neither": {[]string{"kube-proxy says iptables"}, "", "it says that it has mode iptables"},
	} {
		t.Run(name, func(t *testing.T) {
			remark, err := copyOfProgram("a", v1alpha1.KubeProxyNFTables, &nodecleanup.TracesReport{Found: tt.found})
			if !strings.Contains(remark, tt.remark) || (remark == "") != (tt.remark == "") {
				t.Errorf("remark %q, want %q", remark, tt.remark)
			}
			if (err != nil) != (tt.fails != "") || err != nil && (!errors.As(err, new(*NoProxyRulesError)) || !strings.Contains(err.Error(), tt.fails)) {
				t.Errorf("error %v, want %q", err, tt.fails)
			}
		})
	}
}

// TestStanding: a node says what leads there while it leaves mode ipvs, and one that is in a mode
// whose rules would go ends the run.
func TestStanding(t *testing.T) {
	for name, tt := range map[string]struct {
		found        []string
		says, advice string
	}{
		"its turn":     {[]string{"kube-proxy says ipvs", "virtual servers: 12"}, "12 virtual servers of IPVS lead on node a", ""},
		"restarted":    {[]string{"kube-proxy says iptables", "virtual servers: 0"}, "no virtual server of kube-proxy on node a", ""},
		"another mode": {[]string{"kube-proxy says nftables"}, "says that it has mode nftables, not ipvs", "spec.kubeProxy.program.from"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := standing("a", &nodecleanup.TracesReport{Found: tt.found})
			advice := ""
			if wrong := (&WrongModeError{}); errors.As(err, &wrong) {
				got, advice = err.Error(), wrong.Advice()
			}
			if !strings.Contains(got, tt.says) || !strings.Contains(advice, tt.advice) || (advice == "") != (tt.advice == "") {
				t.Errorf("got %q, advice %q", got, advice)
			}
		})
	}
	if got := (&NoProxyRulesError{Node: "a", Says: "ipvs"}).Advice(); !strings.Contains(got, "spec.kubeProxy.program.from: ipvs") {
		t.Errorf("of a program in mode ipvs is advised %q", got)
	}
}

// TestLacking: rules alone do not make the mode of a program, which says its own, and nodes that
// have neither rules nor a copy are not done.
func TestLacking(t *testing.T) {
	for name, tt := range map[string]struct {
		found, problems []string
		says            string
	}{
		"done":            {[]string{"kube-proxy says nftables"}, nil, ""},
		"does not answer": {nil, nil, ""},
		"the wrong mode":  {[]string{"kube-proxy says iptables"}, nil, "says that it has mode iptables, not nftables"},
		"a restart":       {nil, []string{proxyrules.NoRules}, "has no rules of mode nftables"},
		"one is missing":  {nil, []string{"10.96.0.1 tcp 443"}, "for 10.96.0.1 tcp 443"},
		"one has gone":    {nil, []string{"10.96.0.9 tcp 443"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
				Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 443, Protocol: corev1.ProtocolTCP}}},
			}
			s, c := &Inventory{Spec: Spec{Program: &v1alpha1.KubeProxyProgramSpec{}}}, fake.NewClientBuilder().WithObjects(svc).Build()
			r := &nodecleanup.TracesReport{Found: tt.found, Problems: tt.problems}
			got, err := s.lacking(t.Context(), c, "a", v1alpha1.KubeProxyNFTables, r)
			if err != nil || !strings.Contains(got, tt.says) || (got == "") != (tt.says == "") {
				t.Errorf("got %q, %v, want %q", got, err, tt.says)
			}
		})
	}
}

// TestRestartGuide names the file and the unit of each product.
func TestRestartGuide(t *testing.T) {
	for version, want := range map[string][]string{
		"v1.36.3+k3s1":   {"/etc/rancher/k3s/config.yaml", "proxy-mode=nftables", "k3s-agent"},
		"v1.36.3+rke2r1": {"/etc/rancher/rke2/config.yaml", "proxy-mode=nftables", "rke2-agent", "rke2-server"},
		"v1.36.3":        {"mode: nftables", "--proxy-mode", "without --cleanup"},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		n.Status.NodeInfo.KubeletVersion = version
		got := restartGuide(n, modes{v1alpha1.KubeProxyIPTables, v1alpha1.KubeProxyNFTables})
		for _, w := range append(want, "node a") {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in\n%s", version, w, got)
			}
		}
	}
}
