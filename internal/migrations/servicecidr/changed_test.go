//go:build apiserver && long

package servicecidr

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// change is what the owner of a Service does to it in the middle of a migration.
type change struct {
	// service is the name of the Service that it is done to.
	service string
	// patch is sent, and half if the Service is in the middle of its hop.
	patch, half string
	// says is part of the reason that is given.
	says string
	// completes says that the hop goes on if it was done in the middle of it.
	completes bool
}

const pin = `{"metadata":{"annotations":{"` + v1alpha1.AnnotationStrategy + `":"pin"}}}`

// letGo are changes after which apply goes on as if the Service had never been in the migration,
// refused those that apply ends with, since the Service now keeps the old range in use.
var (
	letGo = []change{
		{service: "pinned", patch: pin, half: pin, says: "is pinned", completes: true},
		{
			service: "balanced", patch: `{"spec":{"type":"LoadBalancer"}}`,
			half: `{"spec":{"type":"LoadBalancer","externalName":null,"clusterIP":"10.96.77.7"}}`, says: "is of type LoadBalancer",
		},
		{
			service: "database", patch: `{"spec":{"type":"ExternalName","externalName":"rds.example.com","clusterIP":null,"clusterIPs":null,
				"ipFamilies":null,"ipFamilyPolicy":null,"internalTrafficPolicy":null}}`,
			half: `{"spec":{"externalName":"rds.example.com"}}`, says: "is an ExternalName",
		},
	}
	refused = []change{
		{
			service: "outside", patch: `{"spec":{"externalIPs":["192.0.2.77"]}}`, half: `{"spec":{"externalIPs":["192.0.2.77"]}}`,
			says: "has externalIPs", completes: true,
		},
		{
			service: "local", patch: `{"spec":{"internalTrafficPolicy":"Local"}}`,
			half: `{"spec":{"type":"ClusterIP","externalName":null,"clusterIP":"172.24.77.7","internalTrafficPolicy":"Local"}}`,
			says: "has internalTrafficPolicy Local",
		},
	}
)

// turn sends the changes, as the owners of the Services.
func (f *fixture) turn(all []change, half bool) {
	f.Helper()
	for _, c := range all {
		body := c.patch
		if half {
			body = c.half
		}
		svc := &corev1.Service{}
		svc.Namespace, svc.Name = "shop", c.service
		f.must(server.Patch(f.Context(), svc, client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner("owner")))
	}
}

// moments are where a migration is when Services are changed. Each begins with Services that have
// not been touched, and ends with them changed.
var moments = map[string]func(f *fixture, all []change){
	"bridged": func(f *fixture, all []change) {
		f.bridged()
		f.turn(all, false)
	},
	"about to hop": func(f *fixture, all []change) {
		f.on(engine.StepStarted, "barrier/", func() { f.turn(all, false) })
		f.applied(all)
	},
	"half-hopped": func(f *fixture, all []change) {
		f.bridged()
		p, err := f.job.Examine(f.Context())
		f.must(err)
		for _, c := range all {
			i := slices.IndexFunc(p.Inventory.Moves, func(e *services.Entry) bool { return e.Service.Name == c.service })
			f.cutOff(p, p.Inventory.Moves[i])
		}
		f.turn(all, true)
	},
	"moved": func(f *fixture, all []change) {
		f.job.Until = "move"
		f.apply()
		f.job.Until = ""
		f.turn(all, false)
	},
}

// bridged interrupts apply when the bridges are made.
func (f *fixture) bridged() {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	f.on(engine.StepStarted, "barrier/", cancel)
	if _, err := f.job.Apply(ctx, f.runner); !errors.Is(err, engine.ErrInterrupted) {
		f.Fatal(err)
	}
	f.again()
}

// applied runs apply, which may end with blocking findings for Services that now keep the old range
// in use, and with no other error.
func (f *fixture) applied(all []change) {
	f.Helper()
	_, err := f.job.Apply(f.Context(), f.runner)
	var blocked *findings.BlockedError
	if err != nil && (!errors.As(err, &blocked) || all[0] != refused[0]) {
		f.Fatal(err)
	}
	f.again()
}

// TestChangedInTheMiddle has Services change at each moment in a way that they may not move any
// more. Every command then terminates, no change is undone, no such Service moves, and nothing of
// the migration is left on those that go.
func TestChangedInTheMiddle(t *testing.T) {
	for group, all := range map[string][]change{"let go": letGo, "refused": refused} {
		for moment, reach := range moments {
			for _, command := range []string{"apply", "rollback", "finish"} {
				t.Run(group+", "+moment+", "+command, func(t *testing.T) { changedInTheMiddle(t, all, moment, reach, command) })
			}
		}
	}
}

func changedInTheMiddle(t *testing.T, all []change, moment string, reach func(*fixture, []change), command string) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Batch.Size = 10 })
	pay := f.service("pay", at("10.96.3.9"))
	was := map[string]*corev1.Service{}
	for i, c := range all {
		was[c.service] = f.service(c.service, at("10.96.4."+string(rune('1'+i))))
	}
	reach(f, all)
	changed := map[string]*corev1.Service{}
	for _, c := range all {
		changed[c.service] = f.get(c.service)
	}
	blocked := all[0] == refused[0] && moment == "bridged" // nothing more moves until they are pinned
	switch command {
	case "rollback":
		f.must(f.rollback())
	case "finish":
		f.applied(all)
		if blocked { // does what the finding says
			all = slices.Clone(all)
			for i := range all {
				all[i].patch, all[i].says = pin, "is pinned"
			}
			f.turn(all, false)
			f.apply()
		}
		f.must(f.finish())
	default:
		f.applied(all)
	}
	want := map[string]string{"apply": "172.24.3.9", "finish": "172.24.3.9", "rollback": "10.96.3.9"}[command]
	if blocked && command == "apply" {
		want = pay.Spec.ClusterIP
	}
	if got := f.get("pay").Spec.ClusterIP; got != want {
		t.Errorf("pay is at %s, want %s", got, want)
	}
	for _, c := range all {
		f.unmoved(c, was[c.service], changed[c.service], moment, command)
	}
	if command != "apply" {
		f.nothingLeft()
		done := map[string]v1alpha1.Phase{"rollback": v1alpha1.PhaseRolledBack, "finish": v1alpha1.PhaseFinished}[command]
		if phase := f.again().Status.Phase; phase != done {
			t.Errorf("phase %s, want %s", phase, done)
		}
	}
}

// unmoved fails if a Service that was changed is not as its owner has made it, or keeps what it
// should not.
func (f *fixture) unmoved(c change, was, changed *corev1.Service, moment, command string) {
	f.Helper()
	is := f.get(c.service)
	if moment == "half-hopped" && c.completes {
		want := map[string]string{"rollback": "10.96."}[command]
		if want == "" {
			want = "172.24."
		}
		if !strings.HasPrefix(is.Spec.ClusterIP, want) || is.Spec.Type != was.Spec.Type {
			f.Errorf("%s is of type %s at %s, want %s", c.service, is.Spec.Type, is.Spec.ClusterIP, want)
		}
		return
	}
	if is.Spec.ClusterIP != changed.Spec.ClusterIP || is.Spec.Type != changed.Spec.Type ||
		is.Spec.ExternalName != changed.Spec.ExternalName {
		f.Errorf(
			"%s was made %s %s at %s, and is %s %s at %s",
			c.service,
			changed.Spec.Type,
			changed.Spec.ExternalName,
			changed.Spec.ClusterIP,
			is.Spec.Type,
			is.Spec.ExternalName,
			is.Spec.ClusterIP,
		)
	}
	if stayed := moment == "bridged" || moment == "about to hop"; stayed && is.Spec.Type != corev1.ServiceTypeExternalName &&
		is.Spec.ClusterIP != was.Spec.ClusterIP {
		f.Errorf("%s has moved to %s", c.service, is.Spec.ClusterIP)
	}
	arrived := strings.HasPrefix(is.Spec.ClusterIP, "172.24.")
	if command == "apply" && arrived { // its old address goes on answering
		b := f.get(bridge.Name(was.Name, was.UID))
		if got := f.owner(was.Spec.ClusterIP); got != "services shop/"+b.Name {
			f.Errorf("the old address of %s belongs to %q", c.service, got)
		}
		return
	}
	if slices.Contains(refused, c) && moment == "bridged" && command == "apply" {
		return // what there is of it goes with the next command that may run
	}
	err := server.Get(f.Context(), client.ObjectKey{Namespace: "shop", Name: bridge.Name(was.Name, was.UID)}, &corev1.Service{})
	if !apierrors.IsNotFound(err) {
		f.Errorf("%s still has its bridge: %v", c.service, err)
	}
	for key := range is.Annotations {
		if strings.HasPrefix(key, "replumb.dev/") && key != v1alpha1.AnnotationStrategy {
			f.Errorf("%s still has %s", c.service, key)
		}
	}
	named := slices.ContainsFunc(f.events, func(e engine.Event) bool {
		return strings.Contains(e.Message, "shop/"+c.service) && strings.Contains(e.Message, c.says)
	})
	if !named && (!arrived || command != "finish") {
		f.Errorf("no event says that %s %s", c.service, c.says)
	}
}

// TestLoadBalancerIsNotHopped with its control: the two patches by themselves take the ports of a
// Service's load balancer away.
func TestLoadBalancerIsNotHopped(t *testing.T) {
	for _, naive := range []bool{false, true} {
		f := setup(t)
		f.service("cart", at("10.96.3.7"))
		p := f.planner()
		e := p.Inventory.Moves[0]
		f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Bridge(e))))
		f.turn([]change{{service: "cart", patch: `{"spec":{"type":"LoadBalancer"}}`}}, false)
		balanced := f.get("cart")
		balanced.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}
		f.must(server.Status().Update(t.Context(), balanced))
		balanced = f.get("cart")
		if naive {
			f.turn([]change{
				{service: "cart", patch: `{"spec":{"type":"ExternalName","externalName":"bridge.test","clusterIP":null,"clusterIPs":null}}`},
				{service: "cart", patch: `{"spec":{"type":"LoadBalancer","externalName":null,"clusterIP":"172.24.3.9"}}`},
			}, false)
		} else {
			f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Hop(e, engine.Forward))))
		}
		is := f.get("cart")
		ports, _ := json.Marshal(balanced.Spec.Ports)
		now, _ := json.Marshal(is.Spec.Ports)
		kept := string(ports) == string(now) && len(is.Status.LoadBalancer.Ingress) == 1 && is.Spec.ClusterIP == "10.96.3.7"
		if kept == naive {
			t.Errorf("naive %t: at %s with ports %s (was %s), status %+v", naive, is.Spec.ClusterIP, now, ports, is.Status)
		}
	}
}

// TestEditedServiceHopsByTheRole: what a Service has to be given back after its hop is noted right
// before it, also if its ports have changed since it was bridged.
func TestEditedServiceHopsByTheRole(t *testing.T) {
	f := setup(t)
	operator, _ := migrationtest.Operator(t, server, Roles().Of(access.View, access.Operate))
	f.service("cart", at("10.96.3.7"))
	p := f.planner()
	e := p.Inventory.Moves[0]
	p.Tools.Cluster = operator
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Bridge(e))))
	f.turn([]change{{service: "cart", patch: `{"spec":{"ports":[{"name":"http","port":8081}]}}`}}, false)
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Hop(e, engine.Forward))))
	if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" || is.Spec.Ports[0].Port != 8081 {
		t.Errorf("at %s with ports %+v", is.Spec.ClusterIP, is.Spec.Ports)
	}
}
