//go:build apiserver && long

package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/test/soak/audit"
	"github.com/replumb/replumb/test/soak/model"
)

// onServer is a run without a lab: users at work at a real API server, where no pods are.
func onServer(t *testing.T, seed uint64) (*soak, *apitest.Server) {
	t.Helper()
	server := apitest.Start(t, firstRange)
	server.Config.WarningHandler = rest.NoWarnings{}
	objects, err := metadata.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{seed: seed, client: server, out: &bytes.Buffer{}, trouble: &trouble{}}
	s.camera = camera{client: server, kinds: kubernetes.NewForConfigOrDie(server.Config).Discovery(), metadata: objects}
	s.users = &users{client: server, generator: model.New(seed), stages: &s.stages}
	s.want = audit.Want{Model: s.users.generator.Cluster, Old: netip.MustParsePrefix(firstRange), Stage: audit.Before}
	for _, o := range s.users.generator.Base() {
		if err := server.Create(t.Context(), o, client.FieldOwner(writer)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.remember(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, server
}

// work has users make some operations.
func (s *soak) work(t *testing.T, n int) {
	t.Helper()
	for range n {
		if err := s.users.one(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// empty plays the controller of namespaces: the stand-in lets them go with what is in them.
func (s *soak) empty(t *testing.T) {
	t.Helper()
	all := &corev1.ServiceList{}
	if err := s.client.List(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		svc := &all.Items[i]
		if svc.Namespace == "default" || s.want.Model.Namespaces[svc.Namespace] {
			continue
		}
		if err := s.client.Delete(t.Context(), svc); err != nil {
			t.Fatal(err)
		}
	}
}

// found are the defects that do not come of there being neither pods nor cluster DNS.
func (s *soak) found(t *testing.T) []audit.Defect {
	t.Helper()
	have, err := s.camera.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(have.Everything) < len(have.Services)+len(have.Deployments) {
		t.Fatalf("of %d services and %d deployments it sees %d objects", len(have.Services), len(have.Deployments), len(have.Everything))
	}
	return slices.DeleteFunc(audit.Audit(s.want, have), func(d audit.Defect) bool {
		text := d.String()
		return strings.Contains(text, "pods instead of") || strings.Contains(text, "are of the last revision") ||
			strings.Contains(text, "leads to") || text == "service kube-system/kube-dns: is lost"
	})
}

// TestModelIsWhatTheAPIServerHas holds the model, defaults included, to what a real API server makes of the operations.
func TestModelIsWhatTheAPIServerHas(t *testing.T) {
	s, server := onServer(t, 17)
	s.work(t, 400)
	s.empty(t)
	var found []audit.Defect
	deadline := time.After(time.Minute) // namespaces go when they are empty
	for found = s.found(t); len(found) > 0; found = s.found(t) {
		select {
		case <-deadline:
			for _, d := range found {
				t.Error(d)
			}
			return
		case <-time.After(lookEvery):
		}
	}
	// The control: one change behind the back of the model is found.
	key := model.Key{Namespace: model.Steady, Name: model.SteadyApps()[0]}
	svc := &corev1.Service{}
	if err := server.Get(t.Context(), key, svc); err != nil {
		t.Fatal(err)
	}
	svc.Spec.PublishNotReadyAddresses = true
	if err := server.Update(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	if found = s.found(t); len(found) != 1 || !strings.Contains(found[0].String(), "spec.publishNotReadyAddresses") {
		t.Errorf("what was changed behind its back is found as %v", found)
	}
}

// TestFreezeIsUnderstood has users at work on Services that are frozen.
func TestFreezeIsUnderstood(t *testing.T) {
	s, server := onServer(t, 18)
	s.work(t, 100)
	if err := freeze.Ensure(t.Context(), server, "m"); err != nil {
		t.Fatal(err)
	}
	all := s.want.Model.ServiceKeys()
	if err := freeze.Mark(t.Context(), server, "m", all); err != nil {
		t.Fatal(err)
	}
	s.stages.enter(model.Moving, time.Now())
	// That a freeze is enforced does not say that it has heard of what was listed since.
	cart := &corev1.Service{}
	cart.Namespace, cart.Name = model.Steady, model.SteadyApps()[0]
	change := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"publishNotReadyAddresses":true}}`))
	err := until(t.Context(), time.Minute, "the freeze", func(ctx context.Context) error {
		if err := server.Patch(ctx, cart.DeepCopy(), change, client.DryRunAll); !frozen(err) {
			return fmt.Errorf("it is not enforced: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.work(t, 100)
	if _, refused, last := s.users.counted(); refused < 3 {
		t.Errorf("%d operations were refused; %d services were frozen: %s", refused, len(all), strings.Join(last, "\n"))
	}
}
