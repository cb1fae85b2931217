package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migrations"
)

// Connection to a cluster, with what kinds of migrations need of it. A nil one is none.
type Connection struct {
	*cluster.Cluster
	Inspector *apiserver.Inspector
	// Snapshot answers in place of the cluster; nil, if that does.
	Snapshot *offline.Server
}

// Name is what the user calls the cluster: that of the context, or the address of the API server.
func (c *Connection) Name() string { return cmp.Or(c.ContextName, c.Host()) }

// KnownIdentity is the cluster's, as far as the user may ask for it.
func (c *Connection) KnownIdentity(ctx context.Context) engine.Identity {
	of, err := c.Identity(ctx)
	if err != nil {
		return c.Known()
	}
	return of
}

// Connect to the cluster that the flags name.
func (a *App) Connect() (*Connection, error) { return a.ConnectBy(a.Config) }

// NoCluster is the error of flags that lead to no cluster.
func NoCluster(err error) error {
	return &fault.Hinted{Err: fmt.Errorf("no cluster: %w", err), Hint: "name one with --kubeconfig or --context"}
}

// ConnectBy connects to the cluster that some flags name.
func (a *App) ConnectBy(flags *genericclioptions.ConfigFlags) (*Connection, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, NoCluster(err)
	}
	if unconfigured(flags, config.Host) {
		return nil, NoKubeconfig(flags)
	}
	c, err := cluster.Connect(config)
	if err != nil {
		return nil, err
	}
	c.ContextName = ContextOf(flags)
	if config.Insecure {
		fmt.Fprintln(a.Err, "warning: the kubeconfig has no certificates verified (insecure-skip-tls-verify): "+
			"who answers in the API server's place gets these credentials; single API servers get none, so their flags are not known")
	}
	return &Connection{Cluster: c, Inspector: apiserver.New(config)}, nil
}

// noHost is where kubectl's flags lead if nothing says where.
const noHost = "http://localhost:8080"

// unconfigured reports whether flags lead to a host for want of another.
func unconfigured(flags *genericclioptions.ConfigFlags, host string) bool {
	raw, err := flags.ToRawKubeConfigLoader().RawConfig()
	named := flags.APIServer != nil && *flags.APIServer != ""
	return err == nil && !named && len(raw.Clusters)+len(raw.Contexts) == 0 && host == noHost
}

// NoKubeconfig says where a kubeconfig was looked for, and why there is none.
func NoKubeconfig(flags *genericclioptions.ConfigFlags) error {
	const variable = "$" + clientcmd.RecommendedConfigPathEnvVar
	var looked []string
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		looked = append(looked, variable+" is not set")
	}
	for _, file := range flags.ToRawKubeConfigLoader().ConfigAccess().GetLoadingPrecedence() {
		text := file + " does not exist"
		if _, err := os.Stat(file); err == nil {
			text = file + " names no cluster"
		}
		looked = append(looked, text)
	}
	return &Failure{
		Problem: "no kubeconfig: " + strings.Join(looked, " and "), Hint: "name one with --kubeconfig, or in " + variable, Code: fault.ExitError,
	}
}

// ContextOf is the name of the context that flags lead to; empty if there is none, as in a pod.
func ContextOf(flags *genericclioptions.ConfigFlags) string {
	if flags.Context != nil && *flags.Context != "" {
		return *flags.Context
	}
	kubeconfig, err := flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil { // the connection came from it
		return ""
	}
	return kubeconfig.CurrentContext
}

// Reach connects, and asks the API server whether it answers.
func (a *App) Reach(ctx context.Context) (*Connection, error) {
	c, err := a.Connect()
	if err != nil {
		return nil, err
	}
	_, err = c.ServerVersion(ctx)
	return c, err
}

// RefuseContext refuses --context beside a snapshot.
func (a *App) RefuseContext() error {
	if a.Config.Context != nil && *a.Config.Context != "" {
		return &UsageError{Problem: "--from and --context do not go together", Hint: "name a snapshot, or a cluster"}
	}
	return nil
}

// OpenSnapshot connects to a snapshot in place of a cluster.
func (a *App) OpenSnapshot(file string) (*Connection, error) {
	if err := a.RefuseContext(); err != nil {
		return nil, err
	}
	kept, err := offline.Open(file)
	if err != nil {
		return nil, err
	}
	server := offline.Serve(kept)
	c, err := server.Connect()
	if err != nil {
		return nil, err
	}
	if !a.Settings.Quiet {
		fmt.Fprintf(a.Err, "snapshot %s of %s, taken at %s\n", file, c.Known(), kept.Head.Time.Format(time.RFC3339))
	}
	return &Connection{Cluster: c, Inspector: server.Inspector(), Snapshot: server}, nil
}

// Context gives access to another context of the kubeconfig. Flags that override parts of one, such
// as --server, are not for it.
func (a *App) Context(name string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if a.Config.KubeConfig != nil {
		rules.ExplicitPath = *a.Config.KubeConfig
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: name}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
}

// Introduce prints which cluster is about to be changed.
func (a *App) Introduce(ctx context.Context, c *Connection) error { return c.Introduce(ctx, a.Err) }

// Introduce writes which cluster a command is about.
func (c *Connection) Introduce(ctx context.Context, w io.Writer) error {
	line, err := c.Describe(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, "cluster:", line)
	return err
}

// FlushLimit is how long a command waits at its end for what has yet to be sent.
const FlushLimit = 10 * time.Second

// Tools are what jobs are made with. A nil connection is none.
func (a *App) Tools(c *Connection) migrations.Deps {
	t := migrations.Deps{Image: pull.Image{Name: a.Build.Image()}, Context: a.Context}
	if c != nil {
		t.Cluster, t.Inspector = c.Cluster, c.Inspector
	}
	return t
}
