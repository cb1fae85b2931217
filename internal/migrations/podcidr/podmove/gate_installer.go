package podmove

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/safety/lease"
)

// installerAnswer is what people confirm where nothing in the cluster shows it.
type installerAnswer string

const (
	// installerReady: what the installer has set on nodes takes new addresses for pods'.
	installerReady installerAnswer = "Ready"
	// installerMoved: the installer's own configuration has the new range.
	installerMoved installerAnswer = "Moved"
)

// BeforeAdd waits until nodes take new addresses for pods': kOps translates sources outside of
// nonMasqueradeCIDR (docs/networking.md in k8s.io/kops).
func (p *Planner) BeforeAdd(switched bool) []engine.Group {
	if switched || p.Origin().Distribution != inventory.KOps {
		return nil
	}
	guide := fmt.Sprintf(`compare kops get cluster -o yaml: spec.nonMasqueradeCIDR has to contain %s and what pods have now.
If it does not, set it (kops edit cluster), then: kops update cluster --yes && kops rolling-update cluster --yes`, strings.Join(Texts(p.Inventory.Spec.To), ","))
	return engine.InOrder(p.installerGate("installer", "Wait until nodes take addresses of the targets for pods'", guide, installerReady))
}

// BeforeFinal waits until the installer does not bring the old range back.
func (p *Planner) BeforeFinal() []engine.Group {
	o, s := p.Origin(), p.Inventory.Spec
	guide := movedGuide(o, strings.Join(Texts(s.To), ","), firstOutside(p.Inventory.Nodes, s.From, Texts(s.To)))
	if guide == "" {
		return nil
	}
	title := fmt.Sprintf("Wait until %s has the new range of pods", o.Distribution)
	return engine.InOrder(p.installerGate("installer-moved", title, guide, installerMoved))
}

func (p *Planner) Origin() inventory.Origin {
	config := p.Inventory.Configs[metav1.NamespaceSystem+"/"+controlplane.KubeadmConfig]
	return inventory.OriginOf(p.Inventory.Nodes, config["ClusterConfiguration"] != "")
}

func (p *Planner) installerGate(id, title, guide string, answer installerAnswer) engine.Step {
	tools, spec, origin := p.Tools, p.Inventory.Spec, p.Origin()
	return &engine.Gate{
		Wait: engine.Wait{
			Name: "gate/" + id, About: title, Limit: spec.Nodes.GateWait.Duration, Again: true,
			For: lease.Outlasting(func(ctx context.Context) error {
				if origin.Distribution == inventory.Kubeadm {
					return kubeadmMoved(ctx, tools.Cluster, spec, origin)
				}
				m, err := migration.Get(ctx, tools.Cluster, spec.Name)
				if err != nil || migration.Answered(m, v1alpha1.AnnotationInstaller, string(answer)) {
					return err
				}
				return engine.NotYet("what the installer has cannot be seen from here; once it is right, confirm it: "+
					"kubectl annotate migrations.replumb.dev %s --overwrite %s=%s", spec.Name, v1alpha1.AnnotationInstaller, answer)
			}),
		},
		Instructions: func() string { return guide + "\nreplumb goes on by itself." },
	}
}

// Texts are ranges as they are written.
func Texts(all []netip.Prefix) (out []string) {
	for _, r := range all {
		out = append(out, r.String())
	}
	return out
}
