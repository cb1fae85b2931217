package tools

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/installation"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

type build struct {
	Version  string              `json:"version"`
	Commit   string              `json:"commit,omitempty"`
	Go       string              `json:"goVersion"`
	Platform string              `json:"platform"`
	Image    string              `json:"image,omitempty"`
	Schema   installation.Schema `json:"schema"`
}

type clusterVersion struct {
	Server     string `json:"server"`
	Context    string `json:"context,omitempty"`
	Kubernetes string `json:"kubernetes"`
	installation.Installed
}

type versions struct {
	Client  build           `json:"client"`
	Cluster *clusterVersion `json:"cluster,omitempty"`
	Problem string          `json:"problem,omitempty"`
}

func (o *versionOptions) thisBuild() (build, error) {
	own, err := installation.Own()
	b := build{
		Version: o.Build.Text(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Image: o.Build.Image(), Schema: own,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Commit = s.Value
			}
		}
	}
	return b, err
}

type versionOptions struct {
	*command.App
	format     command.Format
	clientOnly bool
}

// Version prints the versions of this program and of what the cluster has.
func Version(a *command.App) *cobra.Command {
	o := &versionOptions{App: a}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of what the cluster has",
		Args:  command.NoArgs,
		Long: `Print the version of this program, the revisions of replumb's definitions in the cluster, and the version of the
operator, if there is one.

It ends with exit code 3 if they do not go together: client and operator may be one minor version apart, and the
definitions must not be newer than the client (docs/support.md). With --client no cluster is asked.`,
		Example: a.Example("  replumb version\n  replumb version --client\n  replumb version -o json"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&o.clientOnly, "client", false, "of this program alone")
	o.format.Declare(cmd, "table", "json", "yaml", "name")
	return cmd
}

func (o *versionOptions) run(ctx context.Context) error {
	own, err := o.thisBuild()
	if err != nil {
		return err
	}
	all := versions{Client: own}
	var skew error
	if !o.clientOnly {
		all.Cluster, err = o.inCluster(ctx)
	}
	if all.Cluster != nil {
		if skew = all.Cluster.Fits(own.Version); skew != nil {
			all.Problem = skew.Error()
		}
	}
	if wrong := o.print(all); wrong != nil {
		return wrong
	}
	return cmp.Or(err, skew)
}

func (o *versionOptions) inCluster(ctx context.Context) (*clusterVersion, error) {
	c, err := o.Connect()
	if err != nil {
		return nil, err
	}
	kubernetes, err := c.ServerVersion(ctx)
	if err != nil {
		return nil, err
	}
	have, err := installation.Look(ctx, c.Cluster)
	if err != nil {
		return nil, err
	}
	return &clusterVersion{Server: c.Host(), Context: c.ContextName, Kubernetes: kubernetes.GitVersion, Installed: *have}, nil
}

func (o *versionOptions) print(all versions) error {
	switch o.format.Name {
	case "json", "yaml":
		return terminal.Document(o.Out.Verbatim(), o.format.Name, all)
	case "name":
		fmt.Fprintln(o.Out, "client/"+all.Client.Version)
		if all.Cluster != nil && all.Cluster.Operator != nil {
			fmt.Fprintln(o.Out, "operator/"+cmp.Or(all.Cluster.Operator.Version, "unknown"))
		}
		return nil
	}
	all.table(o.Out)
	return nil
}

func (v versions) table(w io.Writer) {
	b := v.Client
	fmt.Fprintf(w, "replumb %s (%s, %s)\n", b.Version, b.Platform, b.Go)
	fmt.Fprintf(w, "  definitions: %s\n", revisions(b.Schema))
	c := v.Cluster
	if c == nil {
		return
	}
	fmt.Fprintf(w, "cluster %s, Kubernetes %s\n", cmp.Or(c.Context, c.Server), c.Kubernetes)
	fmt.Fprintf(w, "  definitions: %s\n", revisions(c.Schema))
	switch o := c.Operator; {
	case o != nil:
		fmt.Fprintf(w, "operator %s, %d of %d replicas ready, %s\n", cmp.Or(o.Version, "of unknown version"), o.Ready, o.Replicas, o.Image)
	case len(c.Unseen) == 0:
		fmt.Fprintln(w, "operator: none")
	}
	for _, what := range c.Unseen {
		fmt.Fprintf(w, "not known: you may not get %s\n", what)
	}
}

func revisions(s installation.Schema) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		short, _, _ := strings.Cut(name, ".")
		all = append(all, fmt.Sprintf("%s %d", short, s[name]))
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}
