package lab

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/replumb/replumb/lab/cgroup"
	"github.com/replumb/replumb/lab/machine"
)

// Reboot ends everything that runs on a worker at once, as a loss of power does, and starts its machine again: with its files and without what
// is only in the kernel or in /run. What ran there of the lab's programs is started as it was last. It returns when the node is Ready again, and
// fails with an *InvalidError if there is no such worker.
func (l Workers) Reboot(ctx context.Context, name string) error {
	return l.changed(func() error {
		m := l.member(name)
		if m == nil || m.Role != Worker {
			return &InvalidError{
				"node", fmt.Sprintf("lab %s has no node %q", l.Topology.Name, name), "it has " + strings.Join(l.NodeNames(), ", "),
			}
		}
		ctx, cancel := context.WithTimeout(ctx, joinDeadline)
		defer cancel()
		on, err := l.Machine(name)
		if err != nil {
			return err
		}
		ran, err := on.Info(ctx)
		if err != nil {
			return fmt.Errorf("machine %s does not answer: %w", name, err)
		}
		since := time.Now().Truncate(time.Second) // a Node's times have no fractions
		if err := l.powerCycle(ctx, m); err != nil {
			return fmt.Errorf("rebooting %s: %w", name, err)
		}
		var programs []machine.Program
		for _, p := range ran.Programs {
			programs = append(programs, p.Program)
		}
		if err := l.machines().run(ctx, m, programs); err != nil {
			return err
		}
		return l.waitReported(ctx, name, since)
	})
}

// powerCycle ends a worker's machine, and starts it without any program.
func (l Workers) powerCycle(ctx context.Context, m *Member) error {
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := tree.Destroy(ctx, cgroupOf(l.Topology.Name)+"/"+m.Name); err != nil {
		return err
	}
	spec := l.nodeSpec(m)
	for _, gone := range []string{spec.Socket(), l.dir(m.Name, "run")} {
		if err := os.RemoveAll(gone); err != nil {
			return err
		}
	}
	if err := l.machines().createCGroups(tree, m); err != nil {
		return err
	}
	fabric, err := l.Fabrics().fabric(ctx)
	if err != nil {
		return err
	}
	defer fabric.Close()
	return l.startMachine(ctx, fabric, m, nil)
}

// waitReported waits until the node's kubelet has said, at some time after since, that it is Ready.
func (l Workers) waitReported(ctx context.Context, name string, since time.Time) error {
	client := l.Client()
	return until(ctx, "its node", func(ctx context.Context) error { return reported(ctx, client, name, since) })
}
