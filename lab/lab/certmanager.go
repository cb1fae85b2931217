package lab

import (
	"bytes"
	"context"
	_ "embed"
	"path/filepath"
	"text/template"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/testing/pki"
	"github.com/replumb/replumb/lab/image"
)

// ClusterIssuer is the one that labs with cert-manager have. It signs with the authority whose certificate is Lab.SiteCA.
const ClusterIssuer = "lab-ca"

// Where cert-manager is.
const (
	certManagerNamespace = "cert-manager"
	certManagerName      = "cert-manager"
	certManagerImage     = "certmanager"
)

// needs tells whether a lab runs a component.
func (t Topology) needs(component string) bool {
	switch component {
	case "registry":
		return t.Registry != ""
	case "certmanager":
		return t.CertManager
	default:
		return t.CNI.needs(component)
	}
}

// writeFurtherImages writes the archive of images that only labs like this one have: every node reads all it is given.
func (l images) writeFurther() error {
	if !l.Topology.CertManager {
		return nil
	}
	return image.WriteTar(l.further(), []image.Image{{
		Ref: imageRef(certManagerImage), Binary: filepath.Join(l.Binaries.certManager, "certmanager"), Name: "certmanager",
	}})
}

func (l images) further() string { return l.dir("further-images.tar") }

// archives are of what every node is given.
func (l images) archives() []string {
	if !l.Topology.CertManager {
		return []string{l.Images}
	}
	return []string{l.Images, l.further()}
}

// equip gives a cluster that is up what this lab has beside it.
func (l Addons) equip(ctx context.Context, o Options, creds *credentials) error {
	g, ctx := errgroup.WithContext(ctx)
	if l.Topology.Edge {
		g.Go(func() error { return l.openIngress(ctx, o) })
	}
	if l.Topology.CertManager {
		g.Go(func() error { return l.installCertManager(ctx, o, creds.site.Pair) })
	}
	return g.Wait()
}

//go:embed certmanager.yaml
var certManagerTemplate string

// installCertManager returns when the ClusterIssuer is Ready.
func (l Addons) installCertManager(ctx context.Context, o Options, authority pki.Pair) error {
	// server-side, because the schemas are longer than what fits into an annotation
	if _, err := l.kubectl(ctx, nil, "apply", "--server-side", "-f", filepath.Join(l.Binaries.certManager, "crd")); err != nil {
		return err
	}
	t, err := template.New("certmanager.yaml").Parse(certManagerTemplate)
	if err != nil {
		return err
	}
	var manifests bytes.Buffer
	err = t.Execute(&manifests, map[string]any{
		"Namespace": certManagerNamespace, "Name": certManagerName, "Image": imageRef(certManagerImage), "Issuer": ClusterIssuer,
		"Certificate": authority.Cert, "Key": authority.Key,
	})
	if err != nil {
		return err
	}
	err = until(ctx, "the API server to take a ClusterIssuer", func(ctx context.Context) error {
		_, err := l.kubectl(ctx, bytes.NewReader(manifests.Bytes()), "apply", "--server-side", "-f", "-")
		return err
	})
	if err != nil || len(l.with(Worker)) == 0 {
		return err
	}
	err = until(ctx, "cert-manager", func(ctx context.Context) error {
		d, err := l.Client().AppsV1().Deployments(certManagerNamespace).Get(ctx, certManagerName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return deploymentReady(d)
	})
	if err != nil {
		return err
	}
	_, err = l.kubectl(ctx, nil, "wait", "--for=condition=Ready", "clusterissuer/"+ClusterIssuer, "--timeout="+upDeadline.String())
	if err == nil {
		o.say("cert-manager signs with ClusterIssuer %s", ClusterIssuer)
	}
	return err
}
