package masquerade

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const register = 1

// header has the offsets of addresses (RFC 791 section 3.1, RFC 8200 section 3).
type header struct{ source, destination, size uint32 }

func headerOf(f nftables.TableFamily) header {
	if f == nftables.TableFamilyIPv4 {
		return header{source: 12, destination: 16, size: 4}
	}
	return header{source: 8, destination: 24, size: 16}
}

// keeping is, in nft's words: ip saddr FROM ip daddr TO snat to ip saddr.
func keeping(p RangePair) []expr.Any {
	h := headerOf(familyOf(p))
	var all []expr.Any
	all = append(all, within(h.source, h.size, p.From)...)
	all = append(all, within(h.destination, h.size, p.To)...)
	return append(all, load(h.source, h.size), &expr.NAT{
		Type: expr.NATTypeSourceNAT, Family: natFamily(p), RegAddrMin: register, RegAddrMax: register,
	})
}

func natFamily(p RangePair) uint32 {
	if p.From.Addr().Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

func load(offset, size uint32) *expr.Payload {
	return &expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size,
	}
}

func within(offset, size uint32, in netip.Prefix) []expr.Any {
	return []expr.Any{
		load(offset, size),
		&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: size,
			Mask: net.CIDRMask(in.Bits(), int(size)*8), Xor: make([]byte, size),
		},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: in.Addr().AsSlice()},
	}
}

// plain makes written rules and the kernel's comparable. Foreign expressions become their type.
func plain(rule []expr.Any) string {
	out := &strings.Builder{}
	for _, e := range rule {
		switch e := e.(type) {
		case *expr.Payload:
			fmt.Fprintf(out, "load %d %d %d %d %d\n", e.OperationType, e.Base, e.Offset, e.Len, e.DestRegister)
		case *expr.Bitwise:
			fmt.Fprintf(out, "mask %d %d %x %t\n", e.SourceRegister, e.DestRegister, e.Mask, bytes.Equal(e.Xor, make([]byte, e.Len)))
		case *expr.Cmp:
			fmt.Fprintf(out, "compare %d %d %x\n", e.Op, e.Register, e.Data)
		case *expr.NAT:
			random := e.Random || e.FullyRandom
			fmt.Fprintf(out, "nat %d %d %d %d %d %t\n", e.Type, e.Family, e.RegAddrMin, e.RegAddrMax, e.RegProtoMin, random)
		default:
			fmt.Fprintf(out, "%T\n", e)
		}
	}
	return out.String()
}
