package footprint

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forget has the process hold no page of a file that it has mapped and cannot write to: of one that it can, changes would be lost.
func forget(file string) error {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		from, to, ok := unchanging(lines.Text(), file)
		if !ok {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise %x-%x: %w", from, to, errno)
		}
	}
	return lines.Err()
}

// unchanging reads a line of /proc/PID/maps (proc_pid_maps(5)), and tells whether it is of that file and not writable.
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
