package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// memory is what a process holds, in MB: of its own, and pages of files, its program above all.
type memory struct{ own, files float64 }

func (m memory) String() string {
	return fmt.Sprintf("%.0f MB (%.0f of its own, %.0f of the program's file)", m.own+m.files, m.own, m.files)
}

// watch has a look at what the prober holds, each second until it is told to stop, and keeps the most since it has started.
func (p *prober) watch(stop <-chan struct{}) {
	const start = 2 * time.Second
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if time.Since(p.began) < start {
			continue
		}
		if m, ok := memoryOf(p.cmd.Process.Pid); ok && m.own+m.files > p.held.own+p.held.files {
			p.held = m
		}
	}
}

func memoryOf(pid int) (m memory, ok bool) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil { // it has ended
		return memory{}, false
	}
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) != 3 {
			continue
		}
		kb, err := strconv.ParseFloat(string(fields[1]), 64)
		if err != nil {
			continue
		}
		switch string(fields[0]) {
		case "RssAnon:":
			m.own = kb / 1024
		case "RssFile:":
			m.files = kb / 1024
		}
	}
	return m, m.own > 0
}
