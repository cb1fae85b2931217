package nodecleanup

import (
	"errors"

	"github.com/replumb/replumb/internal/network/ipvs"
)

// serverPart are virtual servers of IPVS, which are kube-proxy's.
type serverPart struct{ NetworkTraces }

func (p serverPart) find() ([]string, error) {
	if !p.VirtualServers {
		return nil, nil
	}
	all, err := ipvs.Servers()
	var out []string
	for _, s := range all {
		out = append(out, "virtual server "+s.String())
	}
	return out, err
}

func (p serverPart) remove() error {
	if !p.VirtualServers {
		return nil
	}
	all, err := ipvs.Servers()
	for _, s := range all {
		err = errors.Join(err, ipvs.Delete(s))
	}
	return err
}

// LeaveIPVS has nothing new use what kube-proxy has left of mode ipvs. The problems of the report
// are what is open still.
func (Host) LeaveIPVS() (*TracesReport, error) {
	if err := ipvs.LeaveAddresses(); err != nil {
		return nil, err
	}
	open, err := ipvs.Open()
	return &TracesReport{Problems: ipvs.Tell(open)}, err
}

// QuiesceIPVS has what kube-proxy has left of mode ipvs carry the connections that it has, and no
// new ones: nothing follows endpoints there.
func (Host) QuiesceIPVS() (*TracesReport, error) {
	all, err := ipvs.Servers()
	for _, s := range all {
		err = errors.Join(err, ipvs.Quiesce(s))
	}
	return &TracesReport{}, err
}

// RemoveIPVS removes what kube-proxy has left of mode ipvs, if nothing is open. Else it is all
// there still.
func (h Host) RemoveIPVS() (*TracesReport, error) {
	r, err := h.LeaveIPVS()
	if err != nil || len(r.Problems) > 0 {
		return r, err
	}
	n, _ := Find(ProxyIPVS)
	return h.Clean(n)
}
