package nodecleanup

import (
	"errors"
	"fmt"
)

// part is one kind of what a network leaves on a node.
type part interface {
	// find names what there is.
	find() ([]string, error)
	// remove removes what find finds.
	remove() error
}

// parts in order of removal: what makes new pods, what filters and leads packets, what carries
// them, and last what is remembered.
func (h Host) parts(n NetworkTraces) ([]part, error) {
	if n.rulesOnly() { // a server leads from an address of the interface, and rules name sets
		return []part{serverPart{n}, linkPart{h, n, nil}, nftPart{n}, legacyPart{h, n}, setPart{n}}, nil
	}
	n = h.narrow(n)
	nets, err := h.names(n)
	if err != nil {
		return nil, err
	}
	bridges, err := h.bridges(n)
	if err != nil {
		return nil, err
	}
	if n.fileOnly() { // the files go last: without them no one would know the rest, and nodes have another network when this is done
		n = n.ofPods(nets)
		return []part{nftPart{n}, legacyPart{h, n}, linkPart{h, n, bridges}, dirPart{h, n, nets}, confPart{h, n}}, nil
	}
	return []part{
		confPart{h, n},
		nftPart{n},
		legacyPart{h, n},
		rulePart{n},
		routePart{h, n},
		filterPart{n},
		linkPart{h, n, bridges},
		setPart{n},
		pinPart{h, n},
		dirPart{h, n, nets},
	}, nil
}

// Residue finds what a network has left, and fails for what it cannot look at: that may not be
// clean.
func (h Host) Residue(n NetworkTraces) (*TracesReport, error) {
	parts, err := h.parts(n)
	if err != nil {
		return nil, fmt.Errorf("looking for what %s left: %w", n.Name, err)
	}
	return found(n, parts)
}

func found(n NetworkTraces, parts []part) (*TracesReport, error) {
	r := &TracesReport{}
	for _, p := range parts {
		all, err := p.find()
		if err != nil {
			return nil, fmt.Errorf("looking for what %s left: %w", n.Name, err)
		}
		r.Found = append(r.Found, all...)
	}
	return r, nil
}

// Clean removes a network's residue and reports it. It tries everything, and fails if anything is
// left.
func (h Host) Clean(n NetworkTraces) (*TracesReport, error) {
	parts, err := h.parts(n)
	if err != nil {
		return nil, fmt.Errorf("looking for what %s left: %w", n.Name, err)
	}
	before, err := found(n, parts)
	if err != nil {
		return nil, err
	}
	var failed error
	for _, p := range parts {
		failed = errors.Join(failed, p.remove())
	}
	if failed != nil {
		return before, failed
	}
	after, err := found(n, parts)
	if err == nil && !after.Empty() {
		err = fmt.Errorf("still there: %s", after)
	}
	return before, err
}
