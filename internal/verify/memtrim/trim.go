package memtrim

import (
	"fmt"
	"os"
	"runtime/debug"
)

// Trim gives back what only the beginning of a process needed: free memory, and the pages of the program's file, most of which are there
// for what other commands are made of. Those that are needed again come back from the kernel's cache, a microsecond each.
func Trim() error {
	debug.FreeOSMemory()
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("giving back memory: %w", err)
	}
	if err := forget(program); err != nil {
		return fmt.Errorf("giving back memory: %w", err)
	}
	return nil
}
