package cidr

import (
	"fmt"
	"net/netip"
	"sync"
)

// Allocator chooses addresses in a set of ranges. It may be used by several goroutines.
type Allocator struct {
	mu     sync.Mutex
	ranges []netip.Prefix
	used   map[netip.Addr]bool
	up     cursor
	down   cursor
}

// cursor is where the last search ended, so that filling a range takes linear time.
type cursor struct {
	index int
	next  netip.Addr
}

// FullError says that no address is left.
type FullError struct {
	Ranges []netip.Prefix
}

func (e *FullError) Error() string { return fmt.Sprintf("no free address is left in %v", e.Ranges) }

// Advice says how there come to be more.
func (*FullError) Advice() string {
	return "delete what needs no address in it, or choose a larger range: replumb ranges proposes some; then run the same command again"
}

// NewPool is a pool over ranges in which used addresses are never chosen.
func NewPool(ranges []netip.Prefix, used []netip.Addr) *Allocator {
	p := &Allocator{ranges: ranges, used: make(map[netip.Addr]bool, len(used))}
	for _, a := range used {
		p.used[a] = true
	}
	return p
}

func (p *Allocator) Use(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(a)
}

// TakeSameOffset takes the address at the offset that old has in its range, if that is free: ranges
// share offsets, and the first to ask gets it.
func (p *Allocator) TakeSameOffset(old netip.Addr, from []netip.Prefix) (netip.Addr, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range from {
		if !f.Contains(old) {
			continue
		}
		for _, to := range p.ranges {
			if a, ok := At(to, Offset(f, old)); ok && p.take(a) {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

func (p *Allocator) Lowest() (netip.Addr, error) {
	return p.search(&p.up, Bounds, netip.Addr.Next)
}

func (p *Allocator) Highest() (netip.Addr, error) {
	return p.search(&p.down, func(r netip.Prefix) (netip.Addr, netip.Addr) {
		first, last := Bounds(r)
		return last, first
	}, netip.Addr.Prev)
}

func (p *Allocator) search(c *cursor, ends func(netip.Prefix) (start, end netip.Addr), step func(netip.Addr) netip.Addr) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; c.index < len(p.ranges); c.index, c.next = c.index+1, (netip.Addr{}) {
		start, end := ends(p.ranges[c.index])
		if !c.next.IsValid() {
			c.next = start
		}
		for a := c.next; a.IsValid() && p.ranges[c.index].Contains(a); a = step(a) {
			if p.take(a) {
				c.next = a
				return a, nil
			}
			if a == end {
				break
			}
		}
	}
	return netip.Addr{}, &FullError{Ranges: p.ranges}
}

func (p *Allocator) take(a netip.Addr) bool {
	if p.used[a] {
		return false
	}
	p.used[a] = true
	return true
}
