package ipvs

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// parseSockets reads /proc/net/tcp and its kin: the connections of the node's own programs that
// have one of these addresses for their own. A program that connects to an address of its node has
// that for its own, unless the route says otherwise.
func parseSockets(protocol, text string, bound map[netip.Addr]bool) (all []OpenConnection, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		const established = "01" // include/net/tcp_states.h of Linux
		if len(f) < 4 || f[3] != established {
			continue
		}
		own, err := parseNative(f[1])
		if err != nil {
			return nil, err
		}
		to, err := parseNative(f[2])
		if err != nil {
			return nil, err
		}
		if bound[own.Addr()] {
			all = append(all, OpenConnection{Frontend{protocol, to}, own.Addr()})
		}
	}
	return all, nil
}

// parseNative reads an address of /proc/net/tcp: words of four bytes in the machine's order.
func parseNative(text string) (netip.AddrPort, error) {
	address, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	p, e := strconv.ParseUint(port, 16, 16)
	if err != nil || e != nil {
		return netip.AddrPort{}, fmt.Errorf("reading sockets: address %q", text)
	}
	for word := range slices.Chunk(raw, 4) {
		if len(word) == 4 {
			binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
		}
	}
	a, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("reading sockets: address %q", text)
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), nil
}
