package labcli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/machine"
)

func newStatus(s streams) *cobra.Command {
	var name, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the programs of a lab",
		Example: `  replumb-lab status
  replumb-lab status -o json | jq '.machines[].programs[] | select(.restarts > 0)'`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("output %q is not known\nhint: use table or json", output)}
			}
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			var infos []machine.Info
			for _, m := range l.Machines() {
				h, err := l.Machine(m)
				if err != nil {
					return err
				}
				info, err := h.Info(cmd.Context())
				if err != nil {
					info = machine.Info{Name: m} // PID 0: not running
				}
				infos = append(infos, info)
			}
			if output == "json" {
				return json.NewEncoder(s.out).Encode(struct {
					Kubernetes string         `json:"kubernetes"`
					APIServers []string       `json:"apiServers"`
					Members    []lab.Member   `json:"members"`
					Edge       *lab.Edge      `json:"edge,omitempty"`
					Fabric     *lab.Fabric    `json:"fabric,omitempty"`
					Machines   []machine.Info `json:"machines"`
				}{l.Kubernetes(), l.APIServers(), l.Members, l.Edge(), l.Fabric(), infos})
			}
			if f := l.Fabric(); f != nil {
				fmt.Fprintf(s.out, "fabric %s of lab %s, shared by %s\n", f.Name, f.Owner, strings.Join(f.Labs, ", "))
			}
			fmt.Fprintf(s.out, "Kubernetes %s\n", l.Kubernetes())
			printStatus(s, infos)
			return nil
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "output format: table, json")
	return cmd
}

func printStatus(s streams, infos []machine.Info) {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.SetOutputMirror(s.out)
	t.AppendHeader(table.Row{"machine", "program", "pid", "up", "restarts", "last exit"})
	for _, m := range infos {
		if m.PID == 0 {
			t.AppendRow(table.Row{m.Name, "", "not running"})
		} else if len(m.Programs) == 0 {
			t.AppendRow(table.Row{m.Name})
		}
		for _, p := range m.Programs {
			t.AppendRow(table.Row{m.Name, p.Name, p.PID, time.Since(p.Started).Round(time.Second), p.Restarts, p.LastExit})
		}
	}
	t.Render()
}

func newKubeconfig(s streams) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Print the path of a lab's kubeconfig",
		Example: "  export KUBECONFIG=$(replumb-lab kubeconfig)",
		Args:    args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			l, err := lab.Open(name)
			if err == nil {
				_, err = fmt.Fprintln(s.out, l.Kubeconfig())
			}
			return err
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func newLoad(s streams) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "load IMAGE.tar...",
		Short:   "Load container images into every node",
		Example: "  docker save my/app:dev -o app.tar && replumb-lab load app.tar",
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, archives []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			if err := l.Workers().Load(cmd.Context(), archives...); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(s.err, "loaded on %s\n", strings.Join(l.NodeNames(), ", "))
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func newExec(s streams) *cobra.Command {
	var name, namespace string
	cmd := &cobra.Command{
		Use:   "exec MACHINE|POD -- COMMAND",
		Short: "Run a command on a machine, or in a pod",
		Long: `Run a command on a machine of the lab (fabric, cp1, node1, bastion, ...), with its network and files but as the host's root; or
in a pod of that name, if no machine has it.`,
		Example: `  replumb-lab exec node1 -- iptables-save -t nat
  replumb-lab exec node2 -- nft list ruleset
  replumb-lab exec -n shop cart-5d9c7b -- /replumb version`,
		Args: args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			var c *exec.Cmd
			if target := argv[0]; slices.Contains(l.Machines(), target) {
				m, err := l.Machine(target)
				if err != nil {
					return err
				}
				if c, err = m.Command(cmd.Context(), argv[1:]...); err != nil {
					return err
				}
			} else {
				kubectl := append([]string{"--kubeconfig", l.Kubeconfig(), "exec", "-i", "-n", namespace, target, "--"}, argv[1:]...)
				c = exec.CommandContext(cmd.Context(), l.Kubectl(), kubectl...)
			}
			c.Stdin, c.Stdout, c.Stderr = s.in, s.out, s.err
			err = c.Run()
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return insideError{exit}
			}
			return err
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the pod")
	return cmd
}
