package conntrack

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// The numbers of the protocols that Services have.
const (
	tcp  uint8 = 6
	udp  uint8 = 17
	sctp uint8 = 132
)

// States of TCP and SCTP (include/uapi/linux/netfilter/nf_conntrack_{tcp,sctp}.h in Linux).
const (
	tcpSynSent     uint8 = 1
	tcpSynReceived uint8 = 2
	tcpEstablished uint8 = 3
	tcpFinWait     uint8 = 4
	tcpCloseWait   uint8 = 5
	tcpClose       uint8 = 8

	sctpEstablished uint8 = 4
)

// endpoints identify a flow before translation.
type endpoints struct {
	protocol uint8
	from, to netip.AddrPort
}

type flow struct {
	endpoints
	// state of TCP and SCTP.
	state uint8
	// assured says that the flow of UDP goes both ways, and has for more than a moment.
	assured bool
	// left is the remaining lifetime in seconds, which every packet restarts.
	left uint32
}

// open reports whether the client may still send: not after an unanswered SYN, but with one side
// closed, and for UDP as long as the entry lasts.
func (f flow) open() bool {
	switch f.protocol {
	case tcp:
		return f.state >= tcpSynReceived && f.state <= tcpCloseWait
	case sctp:
		return f.state == sctpEstablished
	}
	return true
}

// failed is a dial's remainder that came to nothing.
func (f flow) failed() bool {
	return f.protocol == tcp && (f.state == tcpSynSent || f.state == tcpClose)
}

// protocolName is the API's; empty for others.
func protocolName(number uint8) string {
	switch number {
	case tcp:
		return "TCP"
	case udp:
		return "UDP"
	case sctp:
		return "SCTP"
	}
	return ""
}

// timeouts are in seconds after a flow's latest packet.
type timeouts struct {
	// tcp and sctp are by state. Zero is not known.
	tcp, sctp [10]uint32
	// short are TCP's during retransmissions and with unacknowledged packets.
	short       [2]uint32
	udp, stream uint32
}

// sysctls has the time-outs of the reader's network namespace.
const sysctls = "/proc/sys/net/netfilter/nf_conntrack_"

// readTimeouts falls back to the kernel's defaults.
func readTimeouts(prefix string) timeouts {
	read := func(name string, standard uint32) uint32 {
		body, err := os.ReadFile(prefix + name)
		if err != nil {
			return standard
		}
		seconds, err := strconv.ParseUint(strings.TrimSpace(string(body)), 10, 32)
		if err != nil {
			return standard
		}
		return uint32(seconds)
	}
	t := timeouts{
		short:  [2]uint32{read("tcp_timeout_max_retrans", 300), read("tcp_timeout_unacknowledged", 300)},
		udp:    read("udp_timeout", 30),
		stream: read("udp_timeout_stream", 120),
	}
	t.tcp = [10]uint32{
		tcpSynSent:     read("tcp_timeout_syn_sent", 120),
		tcpSynReceived: read("tcp_timeout_syn_recv", 60),
		tcpEstablished: read("tcp_timeout_established", 432000),
		tcpFinWait:     read("tcp_timeout_fin_wait", 120),
		tcpCloseWait:   read("tcp_timeout_close_wait", 60),
		6:              read("tcp_timeout_last_ack", 30),
		7:              read("tcp_timeout_time_wait", 120),
		tcpClose:       read("tcp_timeout_close", 10),
		9:              120, // both sides sent SYN: no sysctl
	}
	t.sctp = [10]uint32{
		1:               read("sctp_timeout_closed", 10),
		2:               read("sctp_timeout_cookie_wait", 3),
		3:               read("sctp_timeout_cookie_echoed", 3),
		sctpEstablished: read("sctp_timeout_established", 210),
		5:               read("sctp_timeout_shutdown_sent", 3),
		6:               read("sctp_timeout_shutdown_recd", 3),
		7:               read("sctp_timeout_shutdown_ack_sent", 3),
		8:               read("sctp_timeout_heartbeat_sent", 30),
	}
	return t
}

// idle is the time since a flow's latest packet, up to a second more, as the kernel has whole
// seconds. It is zero where unknown, so that clients rather count as active.
func (t *timeouts) idle(f flow) time.Duration {
	full := t.udp
	switch f.protocol {
	case tcp:
		full = t.ofTCP(f)
	case sctp:
		full = of(t.sctp, f.state)
	case udp:
		if f.assured {
			full = t.stream
		}
	}
	if f.left >= full {
		return 0
	}
	return time.Duration(full-f.left) * time.Second
}

// ofTCP is the time-out at the latest packet: the state's, or a shorter one. The shortest that the
// remainder fits in is assumed, which puts the packet latest.
func (t *timeouts) ofTCP(f flow) uint32 {
	full := of(t.tcp, f.state)
	for _, short := range t.short {
		if short < full && f.left <= short {
			full = short
		}
	}
	return full
}

// of is zero for states of newer kernels.
func of(states [10]uint32, state uint8) uint32 {
	if int(state) >= len(states) {
		return 0
	}
	return states[state]
}
