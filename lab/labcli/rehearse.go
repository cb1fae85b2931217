package labcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/rehearsal"
)

type rehearseFlags struct {
	migration, replumb, output string
	back                       bool
	packets                    int
}

// assetsVariable names a folder with etcd and kube-apiserver, in place of those that the lab builds.
const assetsVariable = "KUBEBUILDER_ASSETS"

func newRehearse(s streams) *cobra.Command {
	var f rehearseFlags
	cmd := &cobra.Command{
		Use:   "rehearse SNAPSHOT -f FILE",
		Short: "Rehearse a move of Services with the objects of a snapshot",
		Long: `Start an API server without nodes on this machine, make the objects of a snapshot in it (replumb snapshot), and move their Services with
replumb itself: apply and finish, and with --rollback apply, rollback, apply and finish. Gates are answered. Ends with a report: how long each
phase took, gates, restarts that are planned, risks, errors, and what was played. It needs no root, and reaches neither the cluster of the
snapshot nor anything else that the Migration names.

That sends no packet: whether a request is lost it cannot tell. With --packets N it also brings up a lab with two nodes (root), with N Services
of different shapes and echo servers behind them, moves these under traffic, and counts what is lost. Migrations of Services alone can be
rehearsed; for other kinds bring a lab up.

Exit code: 0 rehearsed to the end, 3 something blocks, 1 an error or a gate that could not be answered, 2 wrong command line, Migration or kind.`,
		Example: `  replumb snapshot --file cluster.tar.gz
  replumb-lab rehearse cluster.tar.gz -f move.yaml
  replumb-lab rehearse cluster.tar.gz -f move.yaml --rollback
  replumb-lab rehearse cluster.tar.gz -f move.yaml --packets 12
  replumb-lab rehearse cluster.tar.gz -f move.yaml -o json > rehearsal.json
  replumb-lab rehearse cluster.tar.gz -f move.yaml --replumb ./bin/replumb`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return f.rehearse(cmd.Context(), given[0], s)
		},
	}
	cmd.Flags().StringVarP(&f.migration, "filename", "f", "", "file with the Migration")
	cmd.Flags().BoolVar(&f.back, "rollback", false, "rehearse the way back as well: apply, rollback, apply, finish")
	cmd.Flags().IntVar(&f.packets, "packets", 0, "Services that are moved in a lab as well, with nodes and under traffic (root)")
	cmd.Flags().StringVar(&f.replumb, "replumb", "", "program to rehearse with (default: replumb beside this one, or on the PATH)")
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "format of the report: table or json")
	return cmd
}

func (f rehearseFlags) rehearse(ctx context.Context, snapshot string, s streams) error {
	switch {
	case f.migration == "":
		return usageError{errors.New("name the Migration\nhint: replumb-lab rehearse " + snapshot + " -f move.yaml")}
	case f.packets < 0:
		return usageError{
			fmt.Errorf("--packets %d is no number of Services\nhint: name how many are to be moved in a lab, such as 12", f.packets),
		}
	case f.output != "table" && f.output != "json":
		return usageError{fmt.Errorf("-o %s is no format of reports\nhint: use table or json", f.output)}
	}
	program, err := findReplumb(f.replumb)
	if err != nil {
		return err
	}
	log.SetLogger(logr.Discard()) // what the clients of the API server note is in the report, if it matters
	say := newReporter(s.err).say
	report, err := rehearsal.Run(ctx, rehearsal.Options{
		Snapshot: snapshot, Migration: f.migration, Replumb: program, Back: f.back, Packets: f.packets, Progress: say,
		Assets: func(ctx context.Context) (string, error) { return assets(ctx, say) },
	})
	if err != nil {
		return err
	}
	if err := show(s.out, report, f.output); err != nil {
		return err
	}
	return verdict(report)
}

func show(w io.Writer, r *rehearsal.Report, format string) error {
	if format == "json" {
		return r.JSON(w)
	}
	return r.Text(w)
}

// blockedError is the end of a rehearsal that something blocks.
type blockedError struct{ error }

func (blockedError) ExitCode() int { return fault.ExitBlocked }

// verdict is an error unless the rehearsal came to its end, and nothing blocks the real one.
func verdict(r *rehearsal.Report) error {
	switch blocking := r.Risks.Objections(); {
	case r.Outcome == rehearsal.Blocked, r.Outcome == rehearsal.Done && len(blocking) > 0:
		return blockedError{errors.New("something blocks the migration\nhint: the report names it, under RISKS and FINDINGS")}
	case r.Outcome != rehearsal.Done:
		return errors.New("the rehearsal did not come to its end\nhint: the report says why, under ERRORS")
	}
	return nil
}

// findReplumb is the program that is named, or the one beside this program, or on the PATH.
func findReplumb(named string) (string, error) {
	if named == "" {
		if own, err := os.Executable(); err == nil {
			beside := filepath.Join(filepath.Dir(own), "replumb")
			if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
				return beside, nil
			}
		}
		named = "replumb"
	}
	found, err := exec.LookPath(named)
	if err != nil {
		return "", usageError{fmt.Errorf("%w\nhint: name the program: --replumb bin/replumb", err)}
	}
	return filepath.Abs(found)
}

// assets is the folder of etcd and kube-apiserver, which are built if they were not yet.
func assets(ctx context.Context, say func(string, ...any)) (string, error) {
	if dir := os.Getenv(assetsVariable); dir != "" {
		return dir, nil
	}
	b, err := component.NewBuilder(say)
	if err != nil {
		return "", err
	}
	return b.Dir(ctx, component.All()[0])
}
