package memtrim

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forget drops pages of a file that are mapped, not writable and never written: the linker's
// relocations (RELRO) are read-only later, and would be lost.
func forget(file string) error {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var from, to uintptr
	ours := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) > 0 && !strings.HasSuffix(fields[0], ":"):
			from, to, ours = unchanging(lines.Text(), file)
		case ours && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
				return fmt.Errorf("madvise %x-%x: %w", from, to, errno)
			}
		}
	}
	return nil
}

// unchanging reads the first line of a mapping in /proc/PID/smaps (proc_pid_smaps(5)): of that
// file, and not writable.
func unchanging(line, file string) (from, to uintptr, ok bool) {
	fields := strings.Fields(line)
	if len(fields) != 6 || fields[5] != file || strings.Contains(fields[1], "w") {
		return 0, 0, false
	}
	first, last, _ := strings.Cut(fields[0], "-")
	begin, err := strconv.ParseUint(first, 16, strconv.IntSize)
	if err != nil {
		return 0, 0, false
	}
	end, err := strconv.ParseUint(last, 16, strconv.IntSize)
	if err != nil || end <= begin {
		return 0, 0, false
	}
	return uintptr(begin), uintptr(end), true
}
