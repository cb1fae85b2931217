package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
	"github.com/replumb/replumb/test/soak/audit"
	"github.com/replumb/replumb/test/soak/model"
)

const (
	labName = "soak"
	// readyWithin is how long what is made first may take.
	readyWithin = 5 * time.Minute
	// firstOperations populate the cluster.
	firstOperations = 60
	// How long users and trouble pause, at least and at most.
	operationLeast, operationMost = time.Second, 6 * time.Second
	troubleLeast, troubleMost     = 15 * time.Second, 50 * time.Second
)

// soak is a run.
type soak struct {
	seed            uint64
	length          time.Duration
	bin, dir        string
	began           time.Time
	lab             *lab.Lab
	kubeconfig      string
	apiServers      []string
	client          client.Client
	clientset       kubernetes.Interface
	camera          camera
	random          *rand.Rand
	stages          stages
	users           *users
	trouble         *trouble
	calls           *calls
	want            audit.Want
	names           string // the clients by name
	addresses       string // and by address, as long as there are any
	with, without   tally
	cycles          int
	commands        int
	commandKills    int
	stumbles        int
	audits, audited int
	defects         int
	naiveLost       int

	out     io.Writer
	mu      sync.Mutex // of what is printed
	current string
}

// newSoak connects to a lab.
func newSoak(l *lab.Lab, seed uint64, length time.Duration, bin, dir string, out io.Writer) (*soak, error) {
	config := l.RESTConfig()
	config.WarningHandler = rest.NoWarnings{} // everything is listed, also what is deprecated
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	s := &soak{
		seed: seed, length: length, bin: bin, dir: dir, began: time.Now(), lab: l, kubeconfig: l.Kubeconfig(),
		apiServers: l.APIServers(), client: c,
		clientset: clientset, random: rand.New(rand.NewPCG(seed, 2)), out: out,
	}
	s.camera = camera{client: c, kinds: s.clientset.Discovery(), metadata: objects}
	s.users = &users{client: c, generator: model.New(seed), stages: &s.stages}
	s.trouble = &trouble{lab: l, client: s.clientset, random: rand.New(rand.NewPCG(seed, 3)), made: map[string]int{}}
	s.calls = &calls{client: s.clientset, nodes: l.NodeNames(), groups: map[string]*group{}}
	s.want = audit.Want{Model: s.users.generator.Cluster, Old: netip.MustParsePrefix(firstRange)}
	return s, nil
}

// soak prepares the cluster, has users and trouble at work, and goes through control, migrations, and the naive way.
func (s *soak) soak(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return fmt.Errorf("preparing the cluster: %w", err)
	}
	s.began = time.Now()
	ctx, stop := context.WithCancelCause(ctx)
	var busy sync.WaitGroup
	for _, work := range []func(context.Context) error{
		func(ctx context.Context) error {
			return s.users.work(ctx, pauses(s.seed, 4, operationLeast, operationMost))
		},
		func(ctx context.Context) error {
			return s.trouble.come(ctx, pauses(s.seed, 5, troubleLeast, troubleMost))
		},
		s.progress,
	} {
		busy.Go(func() {
			if err := work(ctx); err != nil {
				stop(err)
			}
		})
	}
	err := s.migrate(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = errors.Join(cause, err) // what it stopped for comes first
	}
	stop(nil)
	busy.Wait()
	return err
}

// migrate is what the run is about, from top to bottom.
func (s *soak) migrate(ctx context.Context) (err error) {
	defer s.calls.stop()
	defer func() {
		if err == nil {
			return
		}
		for _, loss := range s.calls.sofar(s.kills()).Losses { // whatever it ends for
			s.say("LOST %s", loss)
		}
	}()
	if err := s.control(ctx); err != nil {
		return err
	}
	for last := time.Duration(0); s.cycles == 0 || time.Since(s.began)+last < s.length; {
		began := time.Now()
		if err := s.cycle(ctx, s.cycles+1); err != nil {
			return err
		}
		last = time.Since(began)
	}
	s.phase("until the time is over")
	if err := s.rest(ctx, max(0, s.length-time.Since(s.began))); err != nil {
		return err
	}
	if err := s.audit(ctx, audit.Before); err != nil {
		return err
	}
	if err := s.lived(ctx, s.names); err != nil {
		return err
	}
	if wrong := verdict(s.without, s.with); len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return s.naive(ctx)
}

// naive is the control of the clients: a Service that is deleted and created again must lose requests.
func (s *soak) naive(ctx context.Context) error {
	s.phase("the naive way")
	s.users.Lock()
	defer s.users.Unlock()
	s.trouble.Lock()
	defer s.trouble.Unlock()
	at, err := s.where(ctx)
	if err != nil {
		return err
	}
	if err := s.calls.start(ctx, byNaive, naive(at)...); err != nil {
		return err
	}
	key := model.Key{Namespace: model.Steady, Name: model.SteadyApps()[0]}
	object := s.users.generator.Cluster.Services[key].Object
	for _, w := range []model.Write{{Verb: model.Delete, Object: object}, {Verb: model.Create, Object: object}} {
		if err := s.users.write(ctx, w); err != nil {
			return err
		}
	}
	return until(ctx, heardWithin, "the naive way to lose something", func(ctx context.Context) error {
		t, err := s.calls.lived(ctx, byNaive, nil)
		if s.naiveLost += t.Lost; err == nil && s.naiveLost == 0 {
			err = errors.New("nothing was lost: clients see no loss")
		}
		return err
	})
}

// prepare makes what users begin with.
func (s *soak) prepare(ctx context.Context) error {
	s.phase("preparing")
	if err := s.trouble.join(ctx); err != nil {
		return err
	}
	if err := s.serveOnDNS(ctx); err != nil {
		return err
	}
	for _, o := range append(s.users.generator.Base(), workload.Namespace(callers)) {
		if err := s.client.Create(ctx, o, client.FieldOwner(writer)); err != nil {
			return err
		}
	}
	deployments := &appsv1.DeploymentList{}
	if err := s.client.List(ctx, deployments); err != nil {
		return err
	}
	var all []runtime.Object
	for i := range deployments.Items {
		all = append(all, &deployments.Items[i])
	}
	if err := workload.WaitReady(ctx, s.clientset, readyWithin, all...); err != nil {
		return err
	}
	if err := s.remember(ctx); err != nil {
		return err
	}
	for range firstOperations {
		if err := s.users.one(ctx); err != nil {
			return err
		}
	}
	return nil
}

// serveOnDNS has cluster DNS serve on as what is probed does, for the same reason.
func (s *soak) serveOnDNS(ctx context.Context) error {
	deployments := s.clientset.AppsV1().Deployments(metav1.NamespaceSystem)
	dns, err := deployments.Get(ctx, "coredns", metav1.GetOptions{})
	if err != nil {
		return err
	}
	model.ServeOn(&dns.Spec.Template.Spec)
	_, err = deployments.Update(ctx, dns, metav1.UpdateOptions{})
	return err
}

// remember keeps what was there before any migration.
func (s *soak) remember(ctx context.Context) error {
	have, err := s.camera.take(ctx)
	if err != nil {
		return err
	}
	s.want.Given, s.want.Specs = map[string]bool{}, map[model.Key]corev1.PodSpec{}
	for i := range have.Everything {
		s.want.Given[have.Everything[i].ID()] = true
	}
	for _, d := range have.Deployments {
		s.want.Specs[model.Key{Namespace: d.Namespace, Name: d.Name}] = d.Spec.Template.Spec
	}
	for _, ns := range have.Namespaces {
		if !s.want.Model.Namespaces[ns.Name] {
			s.want.Namespaces = append(s.want.Namespaces, ns.Name)
		}
	}
	return nil
}

// start has all clients call.
func (s *soak) start(ctx context.Context, n int) error {
	if err := s.startAddresses(ctx, n); err != nil {
		return err
	}
	s.trouble.Lock()
	defer s.trouble.Unlock()
	return s.startNames(ctx, n)
}

// startNames has clients by name call, while the caller holds off trouble.
func (s *soak) startNames(ctx context.Context, n int) error {
	at, err := s.where(ctx)
	if err != nil {
		return err
	}
	s.names = byName + "-" + strconv.Itoa(n)
	return s.calls.start(ctx, s.names, called(s.names, named(at))...)
}

// startAddresses has clients call the addresses that there are now.
func (s *soak) startAddresses(ctx context.Context, n int) error {
	s.trouble.Lock()
	defer s.trouble.Unlock()
	at, err := s.where(ctx)
	if err != nil {
		return err
	}
	s.addresses = byAddress + "-" + strconv.Itoa(n)
	return s.calls.start(ctx, s.addresses, called(s.addresses, addressed(at))...)
}

// called gives clients a name, by which they are ended.
func called(name string, all []traffic.Calls) []traffic.Calls {
	for i := range all {
		all[i].Client = name
	}
	return all
}

// pauses draws them from a stream of its own.
func pauses(seed, stream uint64, least, most time.Duration) func() time.Duration {
	random := rand.New(rand.NewPCG(seed, stream))
	return func() time.Duration { return least + time.Duration(random.Int64N(int64(most-least))) }
}

// phase says what goes on, for progress.
func (s *soak) phase(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = text
}

// say prints a line.
func (s *soak) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// progress prints a line a minute.
func (s *soak) progress(ctx context.Context) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		done, refused, _ := s.users.counted()
		made, kills, _ := s.trouble.counted()
		calls := s.calls.sofar(kills)
		s.mu.Lock()
		current := s.current
		s.mu.Unlock()
		s.say("%s: %s: operations=%d refused=%d troubles=%d requests=%d lost=%d broken=%d blamed=%d/%d",
			time.Since(s.began).Round(time.Second), current, done, refused, made, calls.Sent, calls.Lost, calls.Broken,
			calls.BlamedLost, calls.BlamedSent)
	}
}

// result prints what the run came to, and what it takes to see it again.
func (s *soak) result(failure error) {
	done, refused, last := s.users.counted()
	made, _, troubles := s.trouble.counted()
	if failure != nil {
		s.say("FAILED with seed %d: %v", s.seed, failure)
		s.say("the last operations:\n  %s", strings.Join(last, "\n  "))
		s.say("the last troubles:\n  %s", strings.Join(troubles, "\n  "))
	}
	fmt.Fprintf(s.out, "RESULT seed=%d seconds=%.0f cycles=%d commands=%d kills=%d stumbles=%d operations=%d refused=%d troubles=%d %s "+
		"requests=%d lost=%d broken=%d blamed=%d/%d control-requests=%d control-lost=%d control-broken=%d control-blamed=%d/%d "+
		"audits=%d audited=%d defects=%d naive-lost=%d ok=%t\n",
		s.seed, time.Since(s.began).Seconds(), s.cycles, s.commands, s.commandKills, s.stumbles, done, refused, made, s.trouble,
		s.with.Sent, s.with.Lost, s.with.Broken, s.with.BlamedLost, s.with.BlamedSent,
		s.without.Sent, s.without.Lost, s.without.Broken, s.without.BlamedLost, s.without.BlamedSent,
		s.audits, s.audited, s.defects, s.naiveLost, failure == nil)
}

func (s *soak) close() error { return os.RemoveAll(s.dir) }
