// Package ownkernel runs a test in a machine with a kernel of its own, for what the machine's has
// not, such as IPVS. The kernel is one of Debian's packages, unpacked:
//
//	apt-get download linux-image-6.1.0-49-amd64
//	dpkg-deb --extract linux-image-*.deb kernel
//	depmod --basedir kernel 6.1.0-49-amd64
//	REPLUMB_KERNEL=kernel CGO_ENABLED=0 go test -tags root,ownkernel ...
//
// The machine is emulated, by qemu-system-x86_64: no virtualization is asked for, and programs take
// some fifteen times as long. It sees the files of its host, and what it writes goes with it. Its
// 10.0.2.2 is the host's 127.0.0.1.
package ownkernel

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	kernelVariable = "REPLUMB_KERNEL"
	testVariable   = "REPLUMB_OWN_KERNEL_TEST"
	binaryVariable = "REPLUMB_OWN_KERNEL_BINARY"
	moreVariable   = "REPLUMB_OWN_KERNEL_MORE"
	ended          = "-- ended with exit code "
)

// Inside reports whether this process runs in such a machine, and what its host has for it.
func Inside() (more string, is bool) { return os.Getenv(moreVariable), os.Getenv(testVariable) != "" }

// Run runs the test of this name in a machine of its own, and returns what it printed. The test
// fails when it does there.
func Run(t *testing.T, name, more string, limit time.Duration) string {
	t.Helper()
	root, err := filepath.Abs(os.Getenv(kernelVariable))
	if err != nil || os.Getenv(kernelVariable) == "" {
		t.Fatalf("%s names no kernel (package ownkernel says how to get one)", kernelVariable)
	}
	kernels, _ := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if len(kernels) != 1 {
		t.Fatalf("%d kernels are in %s", len(kernels), root)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := elf.Open(binary); err != nil || text.Section(".interp") != nil {
		t.Fatalf("%s cannot be the first process of a machine: build the test with CGO_ENABLED=0 (%v)", binary, err)
	}
	initrd := filepath.Join(t.TempDir(), "initrd")
	if err := writeInitrd(initrd, binary, root, strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")); err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("console=ttyS0 quiet panic=-1 mitigations=off %s=%s %s=%s %s=%s %s=%s",
		testVariable, name, binaryVariable, binary, kernelVariable, root, moreVariable, more)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-machine", "pc", "-m", "2048", "-nodefaults", "-nographic",
		"-no-reboot", "-serial", "stdio", "-kernel", kernels[0], "-initrd", initrd, "-append", line,
		"-fsdev", "local,id=root,path=/,security_model=none,multidevs=remap,readonly=on", "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if err != nil || !strings.Contains(out.String(), ended+"0") {
		t.Fatalf("in a machine of its own: %v\n%s", err, out.String())
	}
	return out.String()
}
