package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticks are those of a second in /proc (sysconf(_SC_CLK_TCK), 100 on every Linux that Go runs on).
const ticks = 100

// cpu is the processor time that this process, its API server and its etcd have taken. On a machine that others use too
// it tells more than the clock on the wall.
func cpu() time.Duration {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return 0
	}
	sum := time.Duration(own.Utime.Nano() + own.Stime.Nano())
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil { // ended meanwhile
			continue
		}
		// After the name, which is in brackets: state, parent, and at 11 and 12 further on the time in user and in system.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 13 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		for _, f := range fields[11:13] {
			n, _ := strconv.Atoi(f)
			sum += time.Duration(n) * time.Second / ticks
		}
	}
	return sum
}

// cost is what something took.
type cost struct {
	wall, cpu time.Duration
}

// clock starts to measure a cost.
func clock() (stop func() cost) {
	start, used := time.Now(), cpu()
	return func() cost { return cost{wall: time.Since(start), cpu: cpu() - used} }
}

func (c cost) String() string {
	return fmt.Sprintf("%.1fs (processor %.1fs)", c.wall.Seconds(), c.cpu.Seconds())
}

// used is what a process that has ended took of the processor, and the most memory it had, in MB, pages of its program's file included.
func used(p *os.ProcessState) (processor time.Duration, peak float64) {
	processor = p.UserTime() + p.SystemTime()
	if usage, ok := p.SysUsage().(*syscall.Rusage); ok {
		peak = float64(usage.Maxrss) / 1024
	}
	return processor, peak
}

// memory is a line of what the kernel says of a process's memory, in MB; 0 once it has ended.
func memory(pid int, line string) float64 {
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for text := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(text, line+":"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kb / 1024
		}
	}
	return 0
}

// load is the load average of 1, 5 and 15 minutes.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
