//go:build long

package hostile

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
)

// claims are the annotations of a Service in the migration.
func claims(old, target string) map[string]string {
	return map[string]string{
		v1alpha1.LabelMigration: migrationName, v1alpha1.AnnotationOldIP: old, v1alpha1.AnnotationTargetIP: target,
	}
}

// attack is a Service that the tenant makes in its namespace.
type attack struct {
	// name of the Service, which says what is tried.
	name string
	ip   string
	make func(*corev1.Service)
	// named is whether check has to name it.
	named bool
	// moves is whether it is moved like any other.
	moves bool
}

func annotated(notes map[string]string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations = notes }
}

func labelled(role string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Labels = map[string]string{v1alpha1.LabelRole: role, v1alpha1.LabelMigration: migrationName}
	}
}

// planted are there before the move begins. Each would gain what its comment says if replumb believed it.
func planted() []attack {
	return []attack{
		// Every node would send what pods send to the address of someone outside to the tenant's pods (CVE-2020-8554).
		{name: "outside", ip: "172.24.7.1", make: annotated(claims("203.0.113.99", "172.24.7.1")), named: true},
		// The same for the address of another tenant's Service that is still to move.
		{name: "other", ip: "172.24.7.2", make: annotated(claims("172.31.3.7", "172.24.7.2")), named: true},
		// The same for the cluster's DNS.
		{name: "dns", ip: "172.24.7.3", make: annotated(claims("10.96.0.10", "172.24.7.3")), named: true},
		// An address of the old range that no one has, to be there first.
		{name: "free", ip: "172.24.7.4", make: annotated(claims("172.31.9.9", "172.24.7.4")), named: true},
		// In the middle of a hop, with a spec that replumb would write: node ports that a quota or a policy keeps from the tenant.
		{name: "half", make: func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.ClusterIP = corev1.ServiceTypeExternalName, ""
			svc.Spec.ExternalName = bridge.Name("half", "") + "." + tenantSpace + ".svc.cluster.local"
			svc.Annotations = claims("172.31.9.10", "172.24.7.5")
			svc.Annotations[v1alpha1.AnnotationOriginalSpec] = `{"type":"NodePort","ports":[{"port":80,"nodePort":32000}]}`
		}, named: true},
		// Annotations that cannot be read stopped every command.
		{name: "garbage", ip: "172.24.7.6", make: annotated(claims("::ffff:nothing", "x")), named: true},
		// To stay, and so to keep everyone's old range in use, by saying that another migration has it.
		{
			name:  "claimed",
			ip:    "172.31.5.7",
			make:  annotated(map[string]string{v1alpha1.LabelMigration: "another"}),
			named: true,
			moves: true,
		},
		// To be skipped without a finding.
		{name: "canary", ip: "172.31.5.8", make: labelled(v1alpha1.RoleCanary), named: true, moves: true},
		{name: "sentinel", ip: "172.31.5.9", make: labelled(v1alpha1.RoleSentinel), named: true, moves: true},
		// To be the Service that agents call, which replumb moves first.
		{name: "zz-probe", ip: "172.31.5.10", make: labelled(v1alpha1.RoleProbe), named: true, moves: true},
		// A bridge of no Service, which had finish wait for it.
		{name: "look-bridge-12345", ip: "172.31.5.11", make: labelled(v1alpha1.RoleBridge), named: true, moves: true},
		// A moment of moving in the future, for which everyone would wait.
		{name: "future", ip: "172.31.5.12", make: annotated(map[string]string{
			v1alpha1.LabelMigration:    migrationName,
			v1alpha1.AnnotationMovedAt: time.Now().Add(100 * time.Hour).UTC().Format(time.RFC3339Nano),
		}), named: true, moves: true},
	}
}

// TestTenantBefore: a tenant with the ClusterRole edit prepares its namespace for a move. The move of all others goes on, and back.
func TestTenantBefore(t *testing.T) {
	s := begin(t)
	s.open("target", newRange)
	tenant := s.tenant()
	attacks := planted()
	for _, a := range attacks {
		svc := plain(tenantSpace, a.name, a.ip)
		a.make(svc)
		s.eventually(func() error { return tenant.Create(t.Context(), svc.DeepCopy()) })
	}
	squatted := s.service(tenantSpace, "mine")
	squatter := plain(tenantSpace, bridge.Name("mine", squatted.UID), "172.31.5.13") // which moves like any other
	s.must(tenant.Create(t.Context(), squatter))

	look := s.replumb("check", "-f", s.file, "-o", "json")
	s.expect(look, 3, "RP1011", "service "+tenantSpace+"/mine cannot have a bridge")
	for _, a := range attacks {
		if named := strings.Contains(look.text(), "service "+tenantSpace+"/"+a.name+" "); named != a.named {
			t.Errorf("check names %s: %t", a.name, named)
		}
	}
	s.apply(0)
	s.noBridgeBut(slices.Concat(moving(attacks), []string{otherSpace + "/cart", tenantSpace + "/" + squatter.Name})...)
	for _, a := range attacks {
		ip := s.service(tenantSpace, a.name).Spec.ClusterIP
		if moved := ip != a.ip && strings.HasPrefix(ip, "172.24."); moved != a.moves {
			t.Errorf("service %s was at %q and is at %q", a.name, a.ip, ip)
		}
	}
	s.home()
	s.noBridgeBut()
}

func moving(attacks []attack) (names []string) {
	for _, a := range attacks {
		if a.moves {
			names = append(names, tenantSpace+"/"+a.name)
		}
	}
	return names
}

// TestTenantBeforeFinish: what a tenant writes keeps no one from finishing.
func TestTenantBeforeFinish(t *testing.T) {
	s := begin(t)
	s.apply(0)
	tenant := s.tenant()
	for _, a := range planted() {
		if strings.HasPrefix(a.ip, "172.31.") { // which is retired by now
			a.ip = ""
		}
		svc := plain(tenantSpace, a.name, a.ip)
		a.make(svc)
		s.eventually(func() error { return tenant.Create(t.Context(), svc.DeepCopy()) })
	}
	s.expect(s.replumb("finish", migrationName, "--yes"), 0)
	s.noBridgeBut()
	held := &networkingv1.IPAddressList{}
	s.must(s.List(t.Context(), held, client.HasLabels{v1alpha1.LabelRole}))
	if len(held.Items) > 0 {
		t.Errorf("reserved addresses are left: %v", held.Items)
	}
}

// TestTenantInAHop: the owner of a Service that has moved breaks the glass and makes it look as between the patches of a hop, without
// the ports that it would have to arrive with. It leaves the migration, and each command goes through for all others.
func TestTenantInAHop(t *testing.T) {
	for _, command := range []string{"apply", "rollback", "finish"} {
		t.Run(command, func(t *testing.T) {
			s := begin(t)
			s.apply(0)
			tenant, mine := s.tenant(), s.service(tenantSpace, "mine")
			s.change(tenant, mine, func(o metav1.Object) { o.SetLabels(map[string]string{v1alpha1.LabelBreakGlass: "true"}) })
			body := []byte(`{"spec":{"type":"ExternalName","externalName":"` + bridge.Name(mine.Name, mine.UID) + `.` + tenantSpace +
				`.svc.cluster.local","externalIPs":null,"clusterIP":null,"clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null,
				"internalTrafficPolicy":null,"externalTrafficPolicy":null,"ports":null}}`)
			s.must(tenant.Patch(t.Context(), mine, client.RawPatch(types.MergePatchType, body)))
			switch command {
			case "apply":
				s.apply(0, tenantSpace+"/mine, which leaves the migration")
			case "rollback":
				s.home()
			default:
				s.expect(s.replumb("finish", migrationName, "--yes"), 0)
			}
			if ip := s.service(otherSpace, "cart").Spec.ClusterIP; strings.HasPrefix(ip, "172.24.") == (command == "rollback") {
				t.Errorf("service cart is at %s", ip)
			}
			if is := s.service(tenantSpace, "mine"); is.Spec.Type != corev1.ServiceTypeExternalName {
				t.Errorf("service mine is of type %s at %s", is.Spec.Type, is.Spec.ClusterIP)
			}
			s.noBridgeBut(otherSpace + "/cart")
		})
	}
}
