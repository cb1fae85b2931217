package ownkernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RunIfFirst makes this process the first one of a machine, and does not return, if it is. The
// TestMain of a package that calls Run calls it first.
func RunIfFirst() {
	if os.Getpid() != 1 || os.Getenv(testVariable) == "" {
		return
	}
	code := 1
	if err := setUp(); err != nil {
		fmt.Println("setting up the machine:", err)
	} else {
		code = runTest()
	}
	fmt.Printf("%s%d\n", ended, code)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func runTest() int {
	cmd := exec.Command(os.Getenv(binaryVariable), "-test.v", "-test.run=^"+os.Getenv(testVariable)+"$") //nolint:noctx // for as long as the machine
	cmd.Env = append(os.Environ(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/run")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		fmt.Println(err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

func setUp() error {
	modules, err := filepath.Glob("/*.ko")
	if err != nil {
		return err
	}
	for _, m := range modules { // in order of their names
		f, err := os.Open(m)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s: %w", m, err)
		}
		_ = f.Close()
	}
	if err := ownRoot(); err != nil {
		return err
	}
	return network()
}

type mount struct{ source, target, kind, data string }

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, 0, m.data); err != nil {
		return fmt.Errorf("mounting %s: %w", m.target, err)
	}
	return nil
}

// ownRoot has the files of the host, below what is written, for those of the machine.
func ownRoot() error {
	for _, m := range []mount{
		{"root", "/host", "9p", "trans=virtio,version=9p2000.L,cache=loose,msize=512000"},
		{"own", "/own", "tmpfs", ""},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/own/upper", "/own/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := (mount{"overlay", "/all", "overlay", "lowerdir=/host,upperdir=/own/upper,workdir=/own/work"}).do(); err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot("/all"), os.Chdir("/")); err != nil {
		return err
	}
	for _, m := range []mount{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"dev", "/dev", "devtmpfs", ""},
		{"run", "/run", "tmpfs", ""},
		{"groups", "/sys/fs/cgroup", "cgroup2", ""},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/lib/modules", 0o755); err != nil {
		return err
	}
	own := filepath.Join(os.Getenv(kernelVariable), "lib", "modules")
	if err := unix.Mount(own, "/lib/modules", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("modules %s: %w", own, err)
	}
	return nil
}

// network is that of `qemu -netdev user`.
func network() error {
	for name, address := range map[string]string{"lo": "", "eth0": "10.0.2.15/24"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
		if a, err := netlink.ParseAddr(address); err == nil {
			if err := netlink.AddrAdd(link, a); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		if strings.HasPrefix(name, "eth") {
			gateway, _ := netlink.ParseAddr("10.0.2.2/32")
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.IP}); err != nil {
				return err
			}
		}
	}
	return nil
}
