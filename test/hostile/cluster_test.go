package hostile

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// The move that is attacked. The old range is not the API server's own, so that no one has to restart it.
const (
	oldRange, newRange = "172.31.0.0/16", "172.24.0.0/16"
	migrationName      = "move"
	// tenantSpace is where the attacker may edit, otherSpace where everyone else's Services are.
	tenantSpace, otherSpace = "tenant", "shop"
)

// scene is a cluster with Services of the tenant and of others, before a move.
type scene struct {
	*testing.T
	*apitest.Server
	// admin may do everything.
	admin client.Client
	// file has the Migration.
	file string
}

// begin empties the cluster and makes the scene.
func begin(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, Server: server.Get(t), file: filepath.Join(t.TempDir(), "move.yaml")}
	s.Clean(t)
	s.admin = s.connect(s.Config)
	s.must(s.InstallCRD(t.Context()))
	s.Namespace(t, tenantSpace)
	s.Namespace(t, otherSpace)
	s.open("old", oldRange)
	// What the ClusterRole edit is made of: the controller that puts it together is not at work here.
	for _, role := range []string{"system:aggregate-to-edit", "system:aggregate-to-view"} {
		s.must(client.IgnoreAlreadyExists(s.admin.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: tenantSpace, Name: strings.ReplaceAll(role, ":", "-")},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: tenantSpace}},
		})))
	}
	s.add(plain(tenantSpace, "mine", "172.31.5.5"))
	s.add(plain(otherSpace, "cart", "172.31.3.7"))
	s.write(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: ` + migrationName + `}
spec:
  serviceCIDR: {from: [` + oldRange + `], to: [` + newRange + `], drain: 0s}
  batch: {settle: 0s}
`)
	return s
}

// open adds a Service range.
func (s *scene) open(name, cidr string) {
	s.Helper()
	s.must(s.Create(s.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
	}))
}

// write writes the file that commands are given.
func (s *scene) write(text string) {
	s.Helper()
	s.must(os.WriteFile(s.file, []byte(text), 0o600))
}

// text is what the file says.
func (s *scene) text() string {
	s.Helper()
	body, err := os.ReadFile(s.file)
	s.must(err)
	return string(body)
}

func plain(namespace, name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// add creates an object; a range may still have to be heard of.
func (s *scene) add(o client.Object) {
	s.Helper()
	s.eventually(func() error { return s.Create(s.Context(), o.DeepCopyObject().(client.Object)) })
}

func (s *scene) eventually(try func() error) {
	s.Helper()
	last := errors.New("not tried")
	err := wait.PollUntilContextTimeout(s.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		s.Fatal(last)
	}
}

// service reads a Service as it is now.
func (s *scene) service(namespace, name string) *corev1.Service {
	s.Helper()
	svc := &corev1.Service{}
	s.must(s.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: name}, svc))
	return svc
}

// as is a client with the identity of another. The API server authorizes and admits its requests as that one's.
func (s *scene) as(user string, extra map[string][]string, groups ...string) client.Client {
	s.Helper()
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated"), Extra: extra}
	return s.connect(config)
}

// connect makes a client that knows every kind of Kubernetes, and replumb's.
func (s *scene) connect(config *rest.Config) client.Client {
	s.Helper()
	known := runtime.NewScheme()
	s.must(scheme.AddToScheme(known))
	s.must(v1alpha1.AddToScheme(known))
	c, err := client.New(config, client.Options{Scheme: known})
	s.must(err)
	return c
}

// tenant may do in its namespace what the ClusterRole edit allows.
func (s *scene) tenant() client.Client { return s.as(tenantSpace, nil) }

// pod has the token of a ServiceAccount that is bound to a pod on a node.
func (s *scene) pod(namespace, account, node string) client.Client {
	return s.as("system:serviceaccount:"+namespace+":"+account, map[string][]string{"authentication.kubernetes.io/node-name": {node}},
		"system:serviceaccounts", "system:serviceaccounts:"+namespace)
}

// outcome is what a command has come to.
type outcome struct {
	code           int
	stdout, stderr string
}

// text is all that a command has said.
func (o outcome) text() string { return o.stdout + o.stderr }

// replumb runs a command of the operator, who may do everything.
func (s *scene) replumb(args ...string) outcome {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], append(args, "--kubeconfig", s.Kubeconfig)...)
	c.Env = append(os.Environ(), asMain+"=1")
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if ended := new(exec.ExitError); err != nil && !errors.As(err, &ended) {
		s.Fatal(err)
	}
	return outcome{c.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// expect fails the test if a command ended with another code, or did not say all of some texts.
func (s *scene) expect(o outcome, code int, texts ...string) {
	s.Helper()
	if o.code != code {
		s.Fatalf("exit code %d, want %d:\n%s", o.code, code, o.text())
	}
	for _, text := range texts {
		if !strings.Contains(o.text(), text) {
			s.Errorf("%q is missing in:\n%s", text, o.text())
		}
	}
}

// apply moves the Services; everything that is no one's attack has to arrive.
func (s *scene) apply(code int, texts ...string) {
	s.Helper()
	s.expect(s.replumb("apply", "-f", s.file), code, texts...)
}
