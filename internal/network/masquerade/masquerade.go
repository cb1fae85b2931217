package masquerade

import (
	"fmt"
	"net/netip"
	"time"
)

// Table is the name of the tables of nftables, one for IPv4 and one for IPv6.
const Table = "replumb-crossing"

// Every is how often Keep looks whether the rules are still there.
const Every = 2 * time.Second

// RangePair is a way that packets go: from the pods of one range to those of another.
type RangePair struct{ From, To netip.Prefix }

func (p RangePair) String() string { return p.From.String() + " to " + p.To.String() }

// Pairs are all ordered pairs of ranges of one family. Overlapping ranges are an error, and so is
// none.
func Pairs(ranges []netip.Prefix) ([]RangePair, error) {
	var out []RangePair
	for i, from := range ranges {
		if !from.IsValid() || from != from.Masked() || from.Addr().Is4In6() {
			return nil, fmt.Errorf("%s is no range of pods", from)
		}
		for k, to := range ranges {
			if k == i || from.Addr().Is4() != to.Addr().Is4() {
				continue
			}
			if from.Overlaps(to) {
				return nil, fmt.Errorf("the ranges %s and %s overlap", from, to)
			}
			out = append(out, RangePair{from, to})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no two of the ranges are of the same family: %v", ranges)
	}
	return out, nil
}

// MissingError says that the rules are not on the node as they should be.
type MissingError struct{ What string }

func (e *MissingError) Error() string {
	return "addresses of pods may change on their way to the other network: " + e.What
}
