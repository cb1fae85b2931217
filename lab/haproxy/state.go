package haproxy

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// The states of servers that one process leaves to the next, as `show servers state` prints them (HAProxy's management guide,
// 9.3): the version of the format, a comment, a line for each server.
const stateVersion = "1"

// Handover is what a process is to know of its servers before it has asked any: what the one before it knew, in its own words
// or empty, and of the others that they are down. Without it haproxy takes servers for ready until the first check has
// failed.
func (c Config) Handover(known []byte, backends ...string) []byte {
	var out bytes.Buffer
	fmt.Fprintln(&out, stateVersion)
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(known))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && c.has(fields[3]) {
			seen[fields[1]+"/"+fields[3]] = true
			fmt.Fprintln(&out, lines.Text())
		}
	}
	for i, backend := range backends {
		for j, s := range c.Servers {
			if seen[backend+"/"+s.Name] {
				continue
			}
			// Stopped, of weight 1, and never asked; the numbers in front are by what it is not found.
			fmt.Fprintf(&out, "%d %s %d %s %s 0 0 1 1 0 1 0 0 14 0 0 0 - %d - 0 0 - - 0\n",
				i+1, backend, len(seen)+j+1, s.Name, s.Address.Addr(), s.Address.Port())
		}
	}
	return out.Bytes()
}

func (c Config) has(name string) bool {
	return slices.ContainsFunc(c.Servers, func(s Server) bool { return s.Name == name })
}
