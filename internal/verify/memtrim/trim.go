package memtrim

import (
	"fmt"
	"os"
	"runtime/debug"
)

// Trim returns what only the start needed: free memory, and pages of the program's file, most of
// which belong to other commands. Pages that are needed again take a microsecond each.
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
