package conntrack

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attr makes an attribute.
func attr(typ int, value ...byte) []byte { return nl.NewRtAttr(typ, value).Serialize() }

// message is an entry as the kernel sends it.
func message() []byte {
	ip := slices.Concat(attr(nl.CTA_IP_V4_SRC, 10, 244, 1, 7), attr(nl.CTA_IP_V4_DST, 10, 96, 0, 5))
	proto := slices.Concat(attr(nl.CTA_PROTO_NUM, sctp), attr(nl.CTA_PROTO_SRC_PORT, 0x9c, 0x40), attr(nl.CTA_PROTO_DST_PORT, 0, 80))
	return slices.Concat(
		[]byte{unix.AF_INET, 0, 0, 0},
		attr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, slices.Concat(attr(nl.CTA_TUPLE_IP|unix.NLA_F_NESTED, ip...),
			attr(nl.CTA_TUPLE_PROTO|unix.NLA_F_NESTED, proto...))...),
		attr(nl.CTA_STATUS, 0, 0, 0, 14), attr(nl.CTA_TIMEOUT, 0, 0, 0, 200),
		attr(nl.CTA_PROTOINFO|unix.NLA_F_NESTED, attr(nl.CTA_PROTOINFO_SCTP|unix.NLA_F_NESTED, attr(stateOfL4, sctpEstablished)...)...),
	)
}

func TestParse(t *testing.T) {
	want := flow{endpoints: pair(sctp, "10.244.1.7:40000", "10.96.0.5:80"), state: sctpEstablished, assured: true, left: 200}
	if got, ok := parse(message()); !ok || got != want {
		t.Errorf("parsed %+v, %v", got, ok)
	}
}

func FuzzParse(f *testing.F) {
	whole := message()
	for i := range whole {
		f.Add(whole[:i])
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, msg []byte) {
		if got, ok := parse(msg); ok && (protocolName(got.protocol) == "" || !got.to.IsValid() || !got.from.IsValid()) {
			t.Errorf("parsed %+v", got)
		}
	})
}
