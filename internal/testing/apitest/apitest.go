// Package apitest runs a real etcd and API server for tests, without nodes, and stands in for the
// few controllers that a migration waits for.
package apitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Server is an API server with its etcd.
type Server struct {
	*cluster.Cluster
	Config     *rest.Config
	Kubeconfig string

	// CertFile and KeyFile are what the API server serves with.
	CertFile, KeyFile string
	// Etcd is the client URL of the API server's etcd, which takes everyone on this machine for an
	// administrator.
	Etcd string

	env *envtest.Environment
	dir string
	// borrowed is the locked file of a Server that belongs to a Pool; one of its own is nil.
	borrowed *os.File
	// fresh is what Wipe leaves.
	fresh        *contents
	stop         context.CancelFunc
	done         chan struct{}
	defaultRange atomic.Pointer[string]
}

// Start runs an API server whose first Service range is serviceRange, until the test ends.
func Start(t *testing.T, serviceRange string) *Server {
	t.Helper()
	s, err := Run(serviceRange)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Lazy is a Server that the tests of a package share. It starts, or is taken out of a Pool, when
// the first of them asks for it, so that tests that need no cluster, and fuzzing, do without.
type Lazy struct {
	Range   string
	Options []Option

	once   sync.Once
	server *Server
	err    error
}

// Get starts the Server or returns the one that is running.
func (l *Lazy) Get(t testing.TB) *Server {
	t.Helper()
	l.once.Do(func() { l.server, l.err = l.obtain() })
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.server
}

func (l *Lazy) obtain() (*Server, error) {
	if dir := os.Getenv(PoolVariable); dir != "" {
		if o := newOptions(l.Range, l.Options); o.sort() != "" {
			if s, err := borrow(context.Background(), dir, o); s != nil || err != nil {
				return s, err
			}
		}
	}
	return Run(l.Range, l.Options...)
}

// Main runs the tests of a package and stops the Server after them.
func (l *Lazy) Main(m *testing.M) int { return Main(m, l) }

// Main runs the tests of a package and stops, after them, those of the Servers that they started.
func Main(m *testing.M, servers ...*Lazy) int {
	code := m.Run()
	for _, l := range servers {
		if l.server == nil {
			continue
		}
		if err := l.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// Option changes how a Server is started.
type Option func(*options)

type options struct {
	flags   map[string]string
	names   []net.IP
	calico  bool
	standIn func(context.Context, *Server)
	// stopWithin is how long etcd and the API server may take to end before they are killed; zero
	// is envtest's.
	stopWithin time.Duration
	// programs run beside the API server, with the flags they get.
	programs map[string][]string
	// assets is the directory of the programs. Default: that of KUBEBUILDER_ASSETS.
	assets string
}

// Names adds addresses to the certificate of the API server, beside the one it listens on.
func Names(names ...net.IP) Option {
	return func(o *options) { o.names = names }
}

// Flag sets a flag of the API server, named without its dashes.
func Flag(name, value string) Option {
	return func(o *options) { o.flags[name] = value }
}

// Assets names the directory that etcd and kube-apiserver are in, in place of KUBEBUILDER_ASSETS.
func Assets(dir string) Option {
	return func(o *options) { o.assets = dir }
}

// WithoutEndpoints starts a stand-in that makes no EndpointSlices. The usual one reads every
// Service over and over, which in a measurement with thousands of them would be most of what is
// measured.
func WithoutEndpoints() Option {
	return func(o *options) { o.standIn = standInWithoutEndpoints }
}

// Calico installs Calico's own definitions, those that its component of the lab comes with.
func Calico() Option {
	return func(o *options) { o.calico = true }
}

const rangeFlag = "service-cluster-ip-range"

func newOptions(serviceRange string, opts []Option) *options {
	o := &options{flags: map[string]string{rangeFlag: serviceRange}, standIn: standIn}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// Run is Start for callers that call Stop themselves.
func Run(serviceRange string, opts ...Option) (*Server, error) {
	o := newOptions(serviceRange, opts)
	if err := o.fromEnvironment(); err != nil {
		return nil, err
	}
	assets := cmp.Or(o.assets, os.Getenv("KUBEBUILDER_ASSETS"))
	if assets == "" {
		return nil, errors.New(
			"KUBEBUILDER_ASSETS does not name a directory with etcd and kube-apiserver\nhint: run the tests with: make test",
		)
	}
	dir, err := os.MkdirTemp("", "replumb-apitest-")
	if err != nil {
		return nil, err
	}
	s := &Server{env: &envtest.Environment{
		BinaryAssetsDirectory: assets, ControlPlaneStartTimeout: 5 * time.Minute, // a busy machine needs much more than the usual 20 s
		ControlPlaneStopTimeout: o.stopWithin,
	}, dir: dir, done: make(chan struct{})}
	if o.calico {
		if s.env.CRDDirectoryPaths, err = calicoDefinitions(); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	if err := s.boot(o); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.Kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(s.Kubeconfig, s.env.KubeConfig, 0o600); err != nil {
		return nil, errors.Join(err, s.env.Stop(), os.RemoveAll(dir))
	}
	if s.Cluster, err = cluster.Connect(s.Config); err != nil {
		return nil, errors.Join(err, s.env.Stop(), os.RemoveAll(dir))
	}
	s.play(o, func(ctx context.Context, name string, flags []string) {
		s.keep(ctx, filepath.Join(assets, name), flags)
	})
	return s, nil
}

// play runs what stands in for controllers, and by keep the programs that run beside the API
// server, until Stop.
func (s *Server) play(o *options, keep func(ctx context.Context, name string, flags []string)) {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	var beside sync.WaitGroup
	beside.Go(func() { o.standIn(ctx, s) })
	if keep != nil {
		for name, flags := range o.programs {
			beside.Go(func() { keep(ctx, name, flags) })
		}
	}
	go func() {
		defer close(s.done)
		beside.Wait()
	}()
}

// calicoDefinitions is the directory of Calico's definitions.
func calicoDefinitions() ([]string, error) {
	dir := os.Getenv("REPLUMB_CALICO_CRDS")
	if dir == "" {
		return nil, errors.New(
			"REPLUMB_CALICO_CRDS does not name the directory of Calico's definitions\nhint: run the tests with: make test",
		)
	}
	return []string{dir}, nil
}

// boot starts etcd and the API server.
func (s *Server) boot(o *options) (err error) {
	s.env.ControlPlane.Etcd = &envtest.Etcd{}
	s.env.ControlPlane.Etcd.Configure().Set("unsafe-no-fsync", "true") // no test pulls the plug
	api := s.env.ControlPlane.GetAPIServer()
	for name, value := range o.flags {
		api.Configure().Set(name, value)
	}
	if api.CertDir, api.CA, err = s.certify(o.names); err != nil {
		return err
	}
	if s.Config, err = s.env.Start(); err != nil {
		return fmt.Errorf("starting etcd and the API server: %w", err)
	}
	s.Etcd = s.env.ControlPlane.Etcd.URL.String()
	return nil
}

// certify makes the files that the API server would else be given (populateAPIServerCerts in
// sigs.k8s.io/controller-runtime pkg/internal/testing/controlplane/apiserver.go), and returns their
// directory and the CA.
func (s *Server) certify(names []net.IP) (dir string, ca []byte, err error) {
	names = append([]net.IP{net.IPv4(127, 0, 0, 1)}, names...)
	chain, key, err := cert.GenerateSelfSignedCertKey("localhost", names, []string{"kubernetes.default.svc"})
	if err != nil {
		return "", nil, fmt.Errorf("making the certificate of the API server: %w", err)
	}
	dir = filepath.Join(s.dir, "certs")
	s.CertFile, s.KeyFile = filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	err = os.Mkdir(dir, 0o700)
	for file, body := range map[string][]byte{
		s.CertFile: chain, s.KeyFile: key,
		filepath.Join(dir, "sa-signer.crt"): chain, filepath.Join(dir, "sa-signer.key"): key,
	} {
		err = errors.Join(err, os.WriteFile(file, body, 0o600))
	}
	return dir, chain, err // the chain ends with the CA
}

// Stop ends what Run started, or gives back what belongs to a Pool.
func (s *Server) Stop() error {
	s.stop()
	<-s.done
	if s.borrowed != nil {
		return s.borrowed.Close()
	}
	return errors.Join(s.env.Stop(), os.RemoveAll(s.dir))
}

// Clean removes everything that tests make, so that the next one begins with an empty cluster.
func (s *Server) Clean(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	s.thaw(t)
	for _, list := range []client.ObjectList{
		&coordinationv1.LeaseList{}, &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}, &corev1.PodList{}, &corev1.NodeList{},
		&v1alpha1.MigrationList{}, &networkingv1.ServiceCIDRList{},
	} {
		if err := s.List(ctx, list); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, list) {
			if _, lease := o.(*coordinationv1.Lease); o.GetName() == "kubernetes" || (lease && o.GetName() != "replumb") {
				continue
			}
			if err := s.remove(ctx, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.removeAddresses(t)
	// Journals and reports outlast Migrations, and one of the next test may have the same name.
	if err := s.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(v1alpha1.JournalNamespace)); err != nil {
		t.Fatal(err)
	}
	s.removeNamespace(t, v1alpha1.SystemNamespace)
	s.awaitRanges(t)
}

// removeAddresses removes the IPAddresses that no Service has any more: reserved ones, and those of
// Services that were deleted while they moved, which an API server would keep for a minute.
func (s *Server) removeAddresses(t testing.TB) {
	t.Helper()
	all := &networkingv1.IPAddressList{}
	if err := s.List(context.Background(), all); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		if p := all.Items[i].Spec.ParentRef; p != nil && p.Namespace == metav1.NamespaceDefault && p.Name == "kubernetes" {
			continue
		}
		if err := s.remove(context.Background(), &all.Items[i]); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitRanges waits until the stand-in has let every ServiceCIDR go but the API server's own.
func (s *Server) awaitRanges(t testing.TB) {
	t.Helper()
	all := &networkingv1.ServiceCIDRList{}
	err := wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			err := s.List(ctx, all)
			return len(all.Items) <= 1, client.IgnoreNotFound(err) // a version that has none
		})
	if err != nil {
		t.Fatalf("servicecidrs %v are left: %v", all.Items, err)
	}
}

// remove deletes an object, waiting until the API server has forgotten a freeze.
func (s *Server) remove(ctx context.Context, o client.Object) error {
	var last error
	_ = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		last = client.IgnoreNotFound(s.Delete(ctx, o, client.GracePeriodSeconds(0)))
		return !apierrors.IsForbidden(last) && !apierrors.IsInvalid(last), nil
	})
	return last
}

// thaw removes the freeze.
func (s *Server) thaw(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	for _, o := range []client.Object{
		&admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingAdmissionPolicy{},
	} {
		o.SetName("replumb-freeze")
		if err := client.IgnoreNotFound(s.Delete(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
}

// removeNamespace waits until the stand-in has let the namespace go.
func (s *Server) removeNamespace(t testing.TB, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			err := s.Delete(ctx, ns)
			return apierrors.IsNotFound(err), nil
		})
	if err != nil {
		t.Fatalf("namespace %s: %v", name, err)
	}
}

// Namespace makes a namespace, if it is not there.
func (s *Server) Namespace(t testing.TB, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := s.Create(context.Background(), ns); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
}

// InstallCRD installs the definition of Migrations.
func (s *Server) InstallCRD(ctx context.Context) error { return s.Define(ctx, cluster.Migration) }

// CRDCurrent reports whether the definition of Migrations is this build's, and served.
func (s *Server) CRDCurrent(ctx context.Context) (bool, error) {
	return s.Current(ctx, cluster.Migration)
}
