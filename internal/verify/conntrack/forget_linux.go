package conntrack

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func kernel() entries { return entries{list: listEntries, get: getEntry, remove: removeEntry} }

func listEntries(each func(leftover)) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	return req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		if e, ok := parseLeftover(msg); ok {
			each(e)
		}
		return true
	})
}

func getEntry(key []byte) (e leftover, there bool, err error) {
	req := nl.NewNetlinkRequest(
		unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET,
		unix.NLM_F_ACK,
	) // the entry comes as one of many, with no end
	req.AddRawData(key)
	err = req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		e, there = parseLeftover(msg)
		return true
	})
	if errors.Is(err, unix.ENOENT) {
		return leftover{}, false, nil
	}
	return e, there && slices.Equal(e.key, key), err
}

func removeEntry(key []byte) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.AddRawData(key)
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// parseLeftover also reads the answering server and the entry's identity: original addresses, zone,
// and ID, which tells it from a successor.
func parseLeftover(msg []byte) (e leftover, ok bool) {
	if e.flow, ok = parse(msg); !ok {
		return e, false
	}
	e.key = slices.Clone(msg[:nl.SizeofNfgenmsg])
	for typ, value := range attributes(msg[nl.SizeofNfgenmsg:]) {
		switch typ {
		case nl.CTA_TUPLE_REPLY:
			e.server = tuple(value).from
		case nl.CTA_TUPLE_ORIG:
			e.key = append(e.key, nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, value).Serialize()...)
		case nl.CTA_ZONE, nl.CTA_ID:
			e.key = append(e.key, nl.NewRtAttr(int(typ), value).Serialize()...)
		}
	}
	return e, e.server.IsValid()
}
