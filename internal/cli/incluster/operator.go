package incluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/operator/controller"
	"github.com/replumb/replumb/internal/reporting/metrics"
)

type operatorOptions struct {
	*command.App
	namespace       string
	allowed, only   []string
	approvePlans    bool
	metrics, health string
}

// Operator runs Migrations that are created in the cluster.
func Operator(a *command.App) *cobra.Command {
	o := operatorOptions{App: a}
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run the Migrations that are created in the cluster",
		Args:  command.NoArgs,
		Long: `Run the Migrations that are created in the cluster, by spec.desired, with the same engine as apply, rollback and
finish. It is started in the cluster, in two replicas, of which one leads; replumb install puts it there.

One Migration runs at a time, under the lock that commands take as well. Where a command asks on a terminal, the
operator asks for the annotation replumb.dev/approve on the Migration: finish:TOKEN, before it takes old
addresses away for good. The reason why it waits, the token that it waits for, and what keeps a Migration from
going on, are in the conditions of the Migration.

It makes no call that a Migration names (hooks, programs, webhooks, DNS) but those whose digest --allow-calls
has: who may write Migrations must not be able to have it run something. It listens on no port unless it is
asked to.`,
		Example: a.Example(`
  replumb operator
  replumb operator --metrics-bind-address 8080 --health-probe-bind-address 8081
  replumb operator --allow-calls DIGEST   # of the calls of one Migration; its condition Stalled has it`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.namespace, "namespace", controller.Namespace, "namespace of the Lease of the replica that leads: the operator's own")
	flags.StringArrayVar(&o.allowed, "allow-calls", nil,
		"digest of calls that a Migration may have the operator make; may be repeated (docs/hooks.md)")
	flags.StringSliceVar(&o.only, "kinds", nil,
		"kinds of migrations that its roles are for, by their fields of spec, such as serviceCIDR,podCIDR (default: all)")
	flags.BoolVar(&o.approvePlans, "require-plan-approval", false,
		"begin no Migration whose plan was not approved: replumb.dev/approve=plan:HASH")
	flags.StringVar(&o.metrics, "metrics-bind-address", "", "[HOST:]PORT to serve Prometheus metrics at, as /metrics (default: none)")
	flags.StringVar(&o.health, "health-probe-bind-address", "", "[HOST:]PORT to serve /healthz and /readyz at (default: none)")
	return cmd
}

// digests are SHA-256 in hexadecimal, as spec.Digest makes them.
var digests = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (o *operatorOptions) check() error {
	for _, d := range o.allowed {
		if !digests.MatchString(d) {
			return &command.UsageError{
				Problem: fmt.Sprintf("--allow-calls %q is no digest", d),
				Hint:    "the condition Stalled of a Migration with calls has its digest: 64 hexadecimal digits",
			}
		}
	}
	known := o.Kinds.Fields()
	for _, kind := range o.only {
		if !slices.Contains(known, kind) {
			return &command.UsageError{Problem: fmt.Sprintf("--kinds: there is no kind %q", kind), Hint: "the kinds are " + strings.Join(known, ", ")}
		}
	}
	if o.namespace == "" {
		return &command.UsageError{Problem: "--namespace is empty", Hint: "leave it out: " + controller.Namespace}
	}
	return nil
}

// run runs a replica until it is asked to end, which is no error.
func (o *operatorOptions) run(ctx context.Context) error {
	c, servers, err := connectInside(ctx, o.App)
	if err != nil {
		return err
	}
	log := func(format string, args ...any) {
		fmt.Fprintf(o.Err, "%s %s\n", time.Now().UTC().Format(time.RFC3339), printable.Line(fmt.Sprintf(format, args...)))
	}
	tools := o.Tools(c)
	tools.Directed = true
	tools.Image = ownImage(ctx, c.Cluster, os.Getenv).Or(tools.Image) // what nodes could pull once
	op := &controller.Operator{
		Kinds: o.Kinds, Tools: tools, Identity: c.KnownIdentity(ctx), Name: replica(os.Getenv), Version: o.Build.Version, Namespace: o.namespace, Allowed: o.allowed,
		PlansApproved: o.approvePlans, Only: o.only, Log: log,
	}
	all, ctx := errgroup.WithContext(ctx)
	if o.metrics != "" {
		listener, err := listen(ctx, "--metrics-bind-address", o.metrics)
		if err != nil {
			return err
		}
		op.Metrics = metrics.New(func(ctx context.Context) ([]v1alpha1.Migration, error) { return migration.List(ctx, c.Cluster) })
		op.Metrics.About(op.Identity)
		served := op.Metrics.ServeOn(listener)
		log("metrics at http://%s/metrics", served.Address)
		all.Go(func() error { return stopAfter(ctx, served.Stop) })
	}
	if o.health != "" {
		listener, err := listen(ctx, "--health-probe-bind-address", o.health)
		if err != nil {
			return err
		}
		served := controller.ServeHealth(listener, func(ctx context.Context) error { _, err := c.ServerVersion(ctx); return err })
		log("health at http://%s/healthz", served.Address)
		all.Go(func() error { return stopAfter(ctx, served.Stop) })
	}
	if servers != nil {
		all.Go(func() error { servers.follow(ctx, c.Cluster); return nil })
	}
	all.Go(func() error { return op.Run(ctx) })
	if err := all.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("operator %s: %w", op.Name, err)
	}
	return nil
}

func ownImage(ctx context.Context, c client.Reader, env func(string) string) pull.Image {
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: env("POD_NAMESPACE"), Name: env("POD_NAME")}
	if key.Name == "" || key.Namespace == "" || c.Get(ctx, key, pod) != nil || len(pod.Spec.Containers) == 0 {
		return pull.Image{}
	}
	own := pull.Image{Name: pod.Spec.Containers[0].Image}
	for _, s := range pod.Spec.ImagePullSecrets {
		own.Secrets = append(own.Secrets, s.Name)
	}
	return own
}

// listen on [HOST:]PORT; without a host on all addresses, since kubelets and Prometheus call.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, &fault.Hinted{Err: err, Hint: "give " + flag + " a [HOST:]PORT that is free, or leave it out"}
	}
	return listener, nil
}

func stopAfter(ctx context.Context, stop func(context.Context) error) error {
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), command.FlushLimit)
	defer cancel()
	return stop(last)
}

func replica(env func(string) string) string {
	if pod := env("POD_NAME"); pod != "" {
		return pod
	}
	host, _ := os.Hostname()
	return fmt.Sprintf("%s_%d", cmp.Or(host, "operator"), os.Getpid())
}

// reached are the API servers of the operator's own cluster. It reaches them without any Service,
// since it moves those.
type reached struct {
	endpoints *cluster.APIEndpoints
}

const followEvery = 30 * time.Second

func (s *reached) follow(ctx context.Context, c *cluster.Cluster) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, followEvery)
		defer cancel()
		if now, err := workload.APIServers(ctx, c); err == nil {
			s.endpoints.Set(ctx, now)
		}
	}, followEvery)
}

func single(config *rest.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if host, _, err := net.SplitHostPort(address); err == nil && host == config.ServerName {
			return config.Dial(ctx, network, address) // no name server is needed, nor any Service
		}
		return (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, network, address)
	}
}

const dialLimit = 3 * time.Second

// connectInside connects to the cluster that the process runs in; with a kubeconfig, to the one
// that it names.
func connectInside(ctx context.Context, a *command.App) (*command.Connection, *reached, error) {
	_, err := os.Stat(cluster.ServiceAccountDir + "/token")
	if err != nil || len(fallback(os.Getenv)) == 0 || a.Config.KubeConfig != nil && *a.Config.KubeConfig != "" {
		c, err := a.Reach(ctx)
		return c, nil, err
	}
	config, endpoints := cluster.Direct(nil, fallback(os.Getenv), cluster.ServiceAccountDir)
	c, err := cluster.Connect(config)
	if err != nil {
		return nil, nil, err
	}
	if now, err := workload.APIServers(ctx, c); err == nil {
		endpoints.Set(ctx, now)
	}
	each := rest.CopyConfig(config)
	each.Dial = single(config)
	return &command.Connection{Cluster: c, Inspector: apiserver.New(each)}, &reached{endpoints: endpoints}, nil
}
