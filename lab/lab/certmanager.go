package lab

import (
	"bytes"
	"context"
	_ "embed"
	"path/filepath"
	"text/template"

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

// certManagerImages are those of cert-manager.
func (l images) certManagerImages() []image.Image {
	return []image.Image{{
		Ref: imageRef(certManagerImage), Binary: filepath.Join(l.Binaries.certManager, "certmanager"), Name: "certmanager",
	}}
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
