package lab

import (
	"context"
	_ "embed"

	"github.com/replumb/replumb/internal/testing/pki"
)

// ClusterIssuer is the one that labs with cert-manager have. It signs with the authority whose certificate is Lab.SiteCA.
const ClusterIssuer = "lab-ca"

// Where cert-manager is.
const (
	certManagerNamespace = "cert-manager"
	certManagerName      = "cert-manager"
	certManagerImage     = "certmanager"
)

//go:embed certmanager.yaml
var certManagerTemplate string

// installCertManager returns when the ClusterIssuer is Ready.
func (l Addons) installCertManager(ctx context.Context, o Options, authority pki.Pair) error {
	err := l.installAddon(ctx, CertManager, certManagerTemplate, map[string]any{
		"Namespace": certManagerNamespace, "Name": certManagerName, "Image": imageRef(certManagerImage), "Issuer": ClusterIssuer,
		"Certificate": authority.Cert, "Key": authority.Key,
	})
	if err != nil || len(l.with(Worker)) == 0 {
		return err
	}
	if err := l.waitDeployments(ctx, certManagerNamespace, certManagerName); err != nil {
		return err
	}
	_, err = l.kubectl(ctx, nil, "wait", "--for=condition=Ready", "clusterissuer/"+ClusterIssuer, "--timeout="+upDeadline.String())
	if err == nil {
		o.say("cert-manager signs with ClusterIssuer %s", ClusterIssuer)
	}
	return err
}
