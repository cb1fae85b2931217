package apitest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Controllers runs the real scheduler and, of the real controller manager, what makes, counts and
// removes pods. The stand-in then makes no EndpointSlices: that is for endpointslice-controller,
// one of more, which are controllers to run beside. Their output goes to files beside the
// server's kubeconfig.
func Controllers(more ...string) Option {
	return func(o *options) {
		o.standIn = standInWithoutEndpoints
		// The clients' own limits would be what is measured where thousands of pods are made.
		busy := []string{"--leader-elect=false", "--kube-api-qps=2000", "--kube-api-burst=4000"}
		o.programs = map[string][]string{
			"kube-scheduler": append([]string{"--secure-port=0"}, busy...),
			"kube-controller-manager": append([]string{
				"--secure-port=0", "--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20",
				"--controllers=deployment-controller,replicaset-controller,statefulset-controller,daemonset-controller," +
					strings.Join(append([]string{"job-controller", "cronjob-controller", "disruption-controller", "garbage-collector-controller"}, more...), ","),
			}, busy...),
		}
	}
}

// keep runs a program until ctx ends, and again if it ends before. It dies with this process: the
// signal is tied to the thread that started it, which is kept for that.
func (s *Server) keep(ctx context.Context, program string, flags []string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	log, err := os.Create(filepath.Join(s.dir, filepath.Base(program)+".log"))
	if err != nil {
		return // nothing starts then, and the first test that waits for it says so
	}
	defer func() { _ = log.Close() }()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		cmd := exec.CommandContext(ctx, program, append([]string{"--kubeconfig=" + s.Kubeconfig}, flags...)...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.WaitDelay = time.Second
		_ = cmd.Run()
	}, time.Second)
}
