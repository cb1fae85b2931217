package incluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/verify/echoserver"
	"github.com/replumb/replumb/internal/verify/memtrim"
	"github.com/replumb/replumb/internal/verify/probe"
)

// Echo is what agents call from nodes without an endpoint of it.
func Echo(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "answer", Short: "Answer what agents ask", Hidden: true, Args: command.NoArgs,
		Long: `answer runs in one pod while a migration of Services goes on; apply starts it, finish and rollback end it.

It answers HTTP requests on port 8080, and echoes on ports 8081 (TCP) and 8082 (UDP). It reads nothing and
reports nothing.`,
		Example: a.Example("  replumb answer"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := memtrim.Trim(); err != nil {
				fmt.Fprintf(a.Err, "error: %v\n", err)
			}
			server, err := listenForAgents(cmd.Context())
			if err != nil {
				return err
			}
			if err := server.Serve(cmd.Context()); err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
	}
}

func listenForAgents(ctx context.Context) (*echoserver.Server, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	server := &echoserver.Server{Identity: probe.EchoIdentity{Name: name, Pod: name}, Drain: echoserver.Drain, Limits: echoserver.ForAgents()}
	return server, server.Listen(ctx, echoserver.HTTPAddress, echoserver.TCPAddress, echoserver.UDPAddress)
}
