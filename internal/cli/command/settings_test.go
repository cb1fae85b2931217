package command

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// TestTimeout: a command that --timeout ends says so, as one that was interrupted; any other error
// is as it was.
func TestTimeout(t *testing.T) {
	waiting := func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("services: %w", ctx.Err())
	}
	for name, tt := range map[string]struct {
		run  func(context.Context) error
		code int
		late bool
	}{
		"a read":        {waiting, fault.ExitInterrupted, true},
		"a run":         {func(ctx context.Context) error { return errors.Join(engine.ErrInterrupted, waiting(ctx)) }, fault.ExitInterrupted, true},
		"what was lost": {func(ctx context.Context) error { return errors.Join(waiting(ctx), &lossguard.LossError{}) }, fault.ExitBudget, false},
		"another error": {func(context.Context) error { return errors.New("any") }, fault.ExitError, false},
		"none":          {func(context.Context) error { return nil }, fault.ExitDone, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Settings{timeout: time.Millisecond}
			root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
			root.AddCommand(&cobra.Command{Use: "do", RunE: func(cmd *cobra.Command, _ []string) error { return tt.run(cmd.Context()) }})
			s.Govern(root)
			root.SetArgs([]string{"do"})
			err := root.ExecuteContext(t.Context())
			if got := ExitCode(err); got != tt.code {
				t.Errorf("exit code %d, want %d: %v", got, tt.code, err)
			}
			if late := errors.As(err, new(*TimeoutError)); late != tt.late {
				t.Errorf("late: %t, want %t: %v", late, tt.late, err)
			}
		})
	}
}

// TestLibrariesAreSilent unless asked: client-go tells of a broken answer on stderr, in the middle
// of what replumb says.
func TestLibrariesAreSilent(t *testing.T) {
	was := os.Stderr
	t.Cleanup(func() { os.Stderr = was })
	for verbosity, want := range map[int]bool{0: false, 6: true} {
		file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		os.Stderr = file
		if err := (&Settings{verbosity: verbosity}).prepare(); err != nil {
			t.Fatal(err)
		}
		klog.Error("client-go")
		klog.Flush()
		ctrllog.Log.Error(errors.New("no"), "controller-runtime")
		grpclog.Error("grpc")
		log.Print("net/http")
		said, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, library := range []string{"client-go", "controller-runtime", "grpc", "net/http"} {
			if strings.Contains(string(said), library) != want {
				t.Errorf("-v %d: %s in %q", verbosity, library, said)
			}
		}
		if !want && len(said) > 0 {
			t.Errorf("-v %d: %q", verbosity, said)
		}
	}
}
