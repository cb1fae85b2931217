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

// The states of TCP and SCTP that matter by name (include/uapi/linux/netfilter/nf_conntrack_tcp.h and nf_conntrack_sctp.h in Linux).
const (
	tcpSynSent     uint8 = 1
	tcpSynReceived uint8 = 2
	tcpEstablished uint8 = 3
	tcpFinWait     uint8 = 4
	tcpCloseWait   uint8 = 5
	tcpClose       uint8 = 8

	sctpEstablished uint8 = 4
)

// endpoints tell flows apart: who sent the first packet, and to whom, before anything was translated.
type endpoints struct {
	protocol uint8
	from, to netip.AddrPort
}

// flow is an entry of connection tracking.
type flow struct {
	endpoints
	// state of TCP and SCTP.
	state uint8
	// assured says that the flow of UDP goes both ways, and has for more than a moment.
	assured bool
	// left is for how many more seconds the kernel remembers the flow. Every packet, either way, begins that again.
	left uint32
}

// open reports whether the client may still send. A SYN without an answer opened nothing. A connection of which one side is closed is
// open: the other half of it may go on for long. UDP has no end but that of the entry.
func (f flow) open() bool {
	switch f.protocol {
	case tcp:
		return f.state >= tcpSynReceived && f.state <= tcpCloseWait
	case sctp:
		return f.state == sctpEstablished
	}
	return true
}

// failed reports whether the flow is what a dial leaves behind that came to nothing.
func (f flow) failed() bool {
	return f.protocol == tcp && (f.state == tcpSynSent || f.state == tcpClose)
}

// protocolName is how the API calls a protocol; empty for those that no Service has.
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

// timeouts are for how many seconds the kernel remembers a flow after its latest packet.
type timeouts struct {
	// tcp and sctp are by state. Zero is not known.
	tcp, sctp [10]uint32
	// short are those that TCP has instead of longer ones: while packets are sent again and again, and while some are not acknowledged.
	short       [2]uint32
	udp, stream uint32
}

// sysctls is where the kernel tells its time-outs, those of the network namespace of the reader.
const sysctls = "/proc/sys/net/netfilter/nf_conntrack_"

// readTimeouts asks the kernel. One that it does not tell, as older ones don't tell all, is the kernel's default.
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

// idle is how long ago the latest packet of a flow was, a second more at most: the kernel tells whole seconds. Where that can't be
// known it is zero: a client is rather taken for an active one than for one that has gone.
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

// ofTCP is the time-out that the entry was given with its latest packet: that of its state, or a shorter one. Which of them it was is
// not known; the shortest that the remainder fits in puts the packet latest.
func (t *timeouts) ofTCP(f flow) uint32 {
	full := of(t.tcp, f.state)
	for _, short := range t.short {
		if short < full && f.left <= short {
			full = short
		}
	}
	return full
}

// of is zero for a state that only kernels know which are newer than this program.
func of(states [10]uint32, state uint8) uint32 {
	if int(state) >= len(states) {
		return 0
	}
	return states[state]
}
