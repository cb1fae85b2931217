package lab

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/lab/haproxy"
	"github.com/replumb/replumb/lab/workload"
)

// tokenValidity is that of what the bastion looks around with: longer than labs live.
const tokenValidity = 30 * 24 * time.Hour

// openIngress gives the cluster its ingress and the bastion its token, and returns when the first network's balancer leads
// there.
func (l Addons) openIngress(ctx context.Context, o Options) error {
	client := l.Client()
	first := l.Topology.Networks[0].Name
	objects := workload.Ingress(l.Edge().Balancers[first])
	if err := workload.Ensure(ctx, client, append(bastionAccount(), objects...)...); err != nil {
		return err
	}
	if err := l.giveToken(ctx, client); err != nil {
		return err
	}
	if len(l.with(Worker)) == 0 {
		return nil
	}
	if err := workload.WaitReady(ctx, client, upDeadline, objects...); err != nil {
		return err
	}
	for _, program := range []string{IngressBalancer, IngressTLSBalancer} {
		if err := l.Balancers().waitBalanced(ctx, first, program, haproxy.Local); err != nil {
			return err
		}
	}
	o.say("the ingress answers at http://%s", l.Edge().Ingress)
	return nil
}

// bastionAccount is who looks around from the bastion.
func bastionAccount() []runtime.Object {
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: bastionName, Namespace: metav1.NamespaceSystem}
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: bastionName, Namespace: metav1.NamespaceSystem}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "replumb-lab:" + bastionName}, Subjects: []rbacv1.Subject{account},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		},
	}
}

// giveToken gives the bastion the token of an account that may look around, as soon as there is one.
func (l Addons) giveToken(ctx context.Context, client kubernetes.Interface) error {
	bastion, err := l.Machine(bastionName)
	if err != nil {
		return err
	}
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenValidity.Seconds()))},
	}
	return until(ctx, "a token for "+bastionName, func(ctx context.Context) error {
		accounts := client.CoreV1().ServiceAccounts(metav1.NamespaceSystem)
		token, err := accounts.CreateToken(ctx, bastionName, request, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		return bastion.WriteFile(ctx, l.Edge().Bastion.Token, []byte(token.Status.Token))
	})
}
