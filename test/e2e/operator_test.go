package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
)

// operator plays the tooling of a cluster's operator: it does what the gates of a migration wait for.
type operator struct {
	lab *lab.Lab
	// What the cluster shall have: the address of the "kubernetes" Service, that of cluster DNS, and the API servers'
	// ranges. For a rollback, those it had.
	kubernetes, dns netip.Addr
	serviceCIDRs    []netip.Prefix
	// podCIDR is what controller managers shall give nodes their ranges of.
	podCIDR netip.Prefix
	// instead are acts in place of its own, by the gate's step.
	instead map[string]func(context.Context) error
	// killAt, if set, is the event at which it kills the command with SIGKILL.
	killAt func(engine.Event) bool
}

// acts are what it does at each gate, by the gate's step.
func (o operator) acts() map[string]func(context.Context) error {
	acts := map[string]func(context.Context) error{
		"gate/certificates": func(ctx context.Context) error {
			return o.lab.ControlPlaneNodes().IssueCertificates(ctx, []netip.Addr{o.kubernetes})
		},
		"gate/kubelets": o.restartKubelets,
		"gate/ranges-paused": func(ctx context.Context) error {
			return errors.Join(o.managersNeverExited(ctx), o.lab.ControlPlaneNodes().RestartControllerManagers(ctx, false, netip.Prefix{}))
		},
		"gate/ranges-given": func(ctx context.Context) error {
			return errors.Join(o.managersNeverExited(ctx), o.lab.ControlPlaneNodes().RestartControllerManagers(ctx, true, o.podCIDR))
		},
		"gate/api-servers": func(ctx context.Context) error {
			if err := o.lab.ControlPlaneNodes().RestartAPIServers(ctx, o.serviceCIDRs, nil); err != nil {
				return err
			}
			return o.vouch(ctx)
		},
	}
	maps.Copy(acts, o.instead)
	return acts
}

// restartKubelets goes on to the next node once the pods of the last that were ready are so again, as the gate asks: kubelets before 1.35 that
// start take them for unready.
func (o operator) restartKubelets(ctx context.Context) error {
	for _, node := range o.lab.NodeNames() {
		before, err := o.readyOn(ctx, node)
		if err != nil {
			return err
		}
		if err := o.lab.Workers().RestartKubelets(ctx, o.dns, node); err != nil {
			return err
		}
		well := 0 // seconds in a row: what is said of pods may be of before the restart
		for tick := time.Tick(time.Second); well < 5; well++ {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick:
			}
			now, err := o.readyOn(ctx, node)
			if err != nil {
				return err
			}
			for uid, ready := range now {
				if before[uid] && !ready {
					well = -1
				}
			}
		}
	}
	return nil
}

// readyOn says of each pod of a node that goes on whether it is ready.
func (o operator) readyOn(ctx context.Context, node string) (map[types.UID]bool, error) {
	all, err := o.lab.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	pods := map[types.UID]bool{}
	for _, p := range all.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			pods[p.UID] = slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
		}
	}
	return pods, nil
}

// vouch says on Migrations that API servers have the range, where replumb cannot see it: those of before 1.32 do not show their flags, and with
// ServiceCIDRs do not tell them by what they give out.
func (o operator) vouch(ctx context.Context) error {
	api := o.lab.Client().Discovery()
	switch _, err := api.ServerResourcesForGroupVersion("networking.k8s.io/v1beta1"); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	if err := api.RESTClient().Get().AbsPath("/flagz").Do(ctx).Error(); !apierrors.IsNotFound(err) {
		return err
	}
	answer := "Repointed"
	if o.kubernetes == netip.MustParseAddr(oldAPI) {
		answer = "Restored"
	}
	all := &v1alpha1.MigrationList{}
	const migrations = "/apis/replumb.dev/v1alpha1/migrations"
	if body, err := api.RESTClient().Get().AbsPath(migrations).DoRaw(ctx); err != nil {
		return err
	} else if err := json.Unmarshal(body, all); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationAPIServers, answer)
	for _, m := range all.Items {
		if err := api.RESTClient().Patch(types.MergePatchType).AbsPath(migrations, m.Name).Body(patch).Do(ctx).Error(); err != nil {
			return err
		}
	}
	return nil
}

// managersNeverExited fails if a controller manager has ended since it was started last, by a gate or with the lab.
func (o operator) managersNeverExited(ctx context.Context) error {
	for _, name := range o.lab.ControlPlanes() {
		m, err := o.lab.Machine(name)
		if err != nil {
			return err
		}
		info, err := m.Info(ctx)
		if err != nil {
			return err
		}
		for _, p := range info.Programs {
			if p.Name == "kube-controller-manager" && (p.Restarts > 0 || p.PID == 0) {
				return fmt.Errorf("the controller manager on %s has ended %d times: %s", name, p.Restarts, p.LastExit)
			}
		}
	}
	return nil
}

// attend runs a command that writes events as JSON lines, such as `replumb apply -o json`, and acts once at each gate
// the command waits at, while it goes on. It returns all events, the exit code, and which gates it acted at. It fails the
// test, and ends the command, when an act fails.
func (o operator) attend(t *testing.T, cmd *exec.Cmd) (events []engine.Event, exitCode int, gates []string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	acts := o.acts()
	var acting sync.WaitGroup
	var oneByOne sync.Mutex
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e engine.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Errorf("%v in %q", err, lines.Text())
			continue
		}
		events = append(events, e)
		if o.killAt != nil && o.killAt(e) {
			_ = cmd.Process.Kill()
			break
		}
		act := acts[e.Step]
		if e.Kind != engine.StepWaiting || e.Guide == "" || act == nil || slices.Contains(gates, e.Step) {
			continue
		}
		gates = append(gates, e.Step)
		acting.Go(func() {
			oneByOne.Lock()
			defer oneByOne.Unlock()
			if err := act(t.Context()); err != nil {
				t.Errorf("at %s: %v", e.Step, err)
				_ = cmd.Process.Kill()
			}
		})
	}
	if err := lines.Err(); err != nil {
		t.Errorf("events of %s: %v", strings.Join(cmd.Args, " "), err)
	}
	_ = cmd.Wait() // what it says is the exit code
	acting.Wait()  // an operator does not notice that a command was killed
	if stderr.Len() > 0 {
		t.Logf("%s: %s", strings.Join(cmd.Args, " "), stderr.String())
	}
	return events, cmd.ProcessState.ExitCode(), gates
}
