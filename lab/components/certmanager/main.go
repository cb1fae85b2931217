// The command certmanager is cert-manager's controller for a lab: what issues and renews Certificates, asks for those that
// Ingresses are annotated for, and signs with an authority in a Secret or with a certificate's own key. Its cmd/controller is a
// module of its own that is not published; this does what that does, without ACME, Vault, Venafi and leader election.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/ingresses"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"golang.org/x/sync/errgroup"
)

// workers of each controller; cert-manager's own default is 5.
const workers = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// options are the defaults of cert-manager's own command.
// https://github.com/cert-manager/cert-manager/blob/v1.21.2/internal/apis/config/controller/v1alpha1/defaults.go
func options() controller.ContextOptions {
	return controller.ContextOptions{
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: os.Getenv("POD_NAMESPACE")},
		IngressShimOptions: controller.IngressShimOptions{
			DefaultIssuerKind: "Issuer", DefaultIssuerGroup: "cert-manager.io",
			DefaultAutoCertificateAnnotations: []string{"kubernetes.io/tls-acme"},
		},
		CertificateOptions: controller.CertificateOptions{
			CopiedAnnotationPrefixes:                 []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"},
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	}
}

// run runs all controllers until ctx ends.
func run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	factory, err := controller.NewContextFactory(ctx, options())
	if err != nil {
		return err
	}
	base, err := factory.Build()
	if err != nil {
		return err
	}
	for name, build := range controller.Known() {
		c, err := build(factory)
		if err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
		group.Go(func() error { return c.Run(workers, ctx) })
	}
	base.SharedInformerFactory.Start(ctx.Done())
	base.KubeSharedInformerFactory.Start(ctx.Done())
	var synced atomic.Bool
	group.Go(func() error {
		base.SharedInformerFactory.WaitForCacheSync(ctx.Done())
		base.KubeSharedInformerFactory.WaitForCacheSync(ctx.Done())
		synced.Store(ctx.Err() == nil)
		return nil
	})
	group.Go(func() error { return serveReadiness(ctx, &synced) })
	return group.Wait()
}

// serveReadiness answers at /readyz once the caches have been filled.
func serveReadiness(ctx context.Context, synced *atomic.Bool) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !synced.Load() {
			http.Error(w, "caches are being filled", http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Addr: os.Getenv("READINESS"), Handler: mux, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}
