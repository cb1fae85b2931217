package conntrack

import (
	"encoding/binary"
	"iter"
	"math"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// assuredBit of an entry's status (IPS_ASSURED in Linux), and where SCTP has its state.
const (
	assuredBit = 1 << 2
	stateOfL4  = 1
)

// dump streams the table, which may have hundreds of thousands of entries. (vishvananda/netlink
// would hold them all, and reads no SCTP ports.)
func dump(each func(flow)) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	return req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		if f, ok := parse(msg); ok {
			each(f)
		}
		return true
	})
}

// parse skips protocols without ports, such as ICMP.
func parse(msg []byte) (f flow, ok bool) {
	if len(msg) < nl.SizeofNfgenmsg {
		return f, false
	}
	f.left = math.MaxUint32 // of what has no time-out it is not known when it had its latest packet
	for typ, value := range attributes(msg[nl.SizeofNfgenmsg:]) {
		switch typ {
		case nl.CTA_TUPLE_ORIG:
			f.endpoints = tuple(value)
		case nl.CTA_PROTOINFO:
			f.state = state(value)
		case nl.CTA_TIMEOUT:
			if len(value) == 4 {
				f.left = binary.BigEndian.Uint32(value)
			}
		case nl.CTA_STATUS:
			f.assured = len(value) == 4 && binary.BigEndian.Uint32(value)&assuredBit != 0
		}
	}
	return f, protocolName(f.protocol) != "" && f.from.IsValid() && f.to.IsValid()
}

func tuple(nested []byte) endpoints {
	var out endpoints
	var from, to netip.Addr
	var fromPort, toPort uint16
	for typ, value := range attributes(nested) {
		switch typ {
		case nl.CTA_TUPLE_IP:
			for typ, value := range attributes(value) {
				switch typ {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					from, _ = netip.AddrFromSlice(value)
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					to, _ = netip.AddrFromSlice(value)
				}
			}
		case nl.CTA_TUPLE_PROTO:
			for typ, value := range attributes(value) {
				switch {
				case typ == nl.CTA_PROTO_NUM && len(value) == 1:
					out.protocol = value[0]
				case typ == nl.CTA_PROTO_SRC_PORT && len(value) == 2:
					fromPort = binary.BigEndian.Uint16(value)
				case typ == nl.CTA_PROTO_DST_PORT && len(value) == 2:
					toPort = binary.BigEndian.Uint16(value)
				}
			}
		}
	}
	out.from, out.to = netip.AddrPortFrom(from.Unmap(), fromPort), netip.AddrPortFrom(to.Unmap(), toPort)
	return out
}

func state(nested []byte) uint8 {
	for typ, value := range attributes(nested) {
		if typ != nl.CTA_PROTOINFO_TCP && typ != nl.CTA_PROTOINFO_SCTP {
			continue
		}
		for typ, value := range attributes(value) {
			if typ == stateOfL4 && len(value) == 1 {
				return value[0]
			}
		}
	}
	return 0
}

// attributes of a netlink message, up to the first broken one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= nl.SizeofNfattr {
			length := int(binary.NativeEndian.Uint16(b))
			typ := binary.NativeEndian.Uint16(b[2:]) & nl.NLA_TYPE_MASK
			if length < nl.SizeofNfattr || length > len(b) || !yield(typ, b[nl.SizeofNfattr:length]) {
				return
			}
			b = b[min((length+3)&^3, len(b)):]
		}
	}
}
