package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/verify/echoserver"
	"github.com/replumb/replumb/internal/verify/memtrim"
	"github.com/replumb/replumb/internal/verify/probe"
)

// answer is what agents call from nodes without an endpoint of it. People have no use for it.
func (a *app) answer() *cobra.Command {
	return &cobra.Command{
		Use: "answer", Short: "Answer what agents ask", Hidden: true, Args: noArgs,
		Long: `answer runs in one pod while a migration of Services goes on; apply starts it, finish and rollback end it.

It answers HTTP requests on port 8080, and echoes on ports 8081 (TCP) and 8082 (UDP). It reads nothing and reports nothing.`,
		Example: a.example("  replumb answer"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := memtrim.Trim(); err != nil {
				fmt.Fprintf(a.err, "error: %v\n", err)
			}
			server, err := answering(cmd.Context())
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

// answering listens for what agents ask.
func answering(ctx context.Context) (*echoserver.Server, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	server := &echoserver.Server{Identity: probe.Identity{Name: name, Pod: name}, Drain: echoserver.Drain, Limits: echoserver.ForAgents()}
	return server, server.Listen(ctx, echoserver.HTTPAddress, echoserver.TCPAddress, echoserver.UDPAddress)
}
