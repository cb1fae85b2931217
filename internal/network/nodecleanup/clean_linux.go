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

// parts in the order in which they are removed: first what makes new pods, then what filters and leads packets, what carries
// them, and last what is remembered of them.
func (h Host) parts(n Network) ([]part, error) {
	if n.rulesOnly() {
		return []part{nftPart{n}, legacyPart{h, n}}, nil
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
		return []part{nftPart{n}, legacyPart{h, n}, linkPart{n, bridges}, dirPart{h, n, nets}, confPart{h, n}}, nil
	}
	return []part{
		confPart{h, n},
		nftPart{n},
		legacyPart{h, n},
		rulePart{n},
		routePart{h, n},
		filterPart{n},
		linkPart{n, bridges},
		setPart{n},
		pinPart{h, n},
		dirPart{h, n, nets},
	}, nil
}

// Residue finds what a network has left on the node, and changes nothing. What cannot be looked at is an error: it is not known to
// be clean.
func (h Host) Residue(n Network) (*Report, error) {
	parts, err := h.parts(n)
	if err != nil {
		return nil, fmt.Errorf("looking for what %s left: %w", n.Name, err)
	}
	return found(n, parts)
}

func found(n Network, parts []part) (*Report, error) {
	r := &Report{}
	for _, p := range parts {
		all, err := p.find()
		if err != nil {
			return nil, fmt.Errorf("looking for what %s left: %w", n.Name, err)
		}
		r.Found = append(r.Found, all...)
	}
	return r, nil
}

// Clean removes what a network has left on the node and reports what that was. It tries everything before it fails, and fails
// too if anything is still there afterwards.
func (h Host) Clean(n Network) (*Report, error) {
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
