// Package nodecleanup runs on a node while its pod network is replaced: it finds and removes what a
// network has left, and watches for clients from outside. Rules of others and policies of chains
// stay.
package nodecleanup

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// messageLimit is below MaxContainerTerminationMessageLength (k8s.io/kubernetes
// pkg/kubelet/container/runtime.go).
const messageLimit = 4000

// Host is the node as a pod sees it.
type Host struct {
	// Root is where the node's own root directory is mounted, such as /host.
	Root string
	// Pods are the ranges of the network: routes into them are its own.
	Pods []netip.Prefix
}

// TracesReport is what one look at a node found. It fits into a termination message.
type TracesReport struct {
	// Found are things such as "interface cni0", in the order in which they are removed.
	Found []string `json:"found,omitempty"`
	// More is how many there are that had no room.
	More int `json:"more,omitempty"`
	// Clients are addresses that are served, for a watch.
	Clients []string `json:"clients,omitempty"`
	// Problems are sentences, each about one thing that is in the way of running two networks.
	Problems []string `json:"problems,omitempty"`
}

func (r *TracesReport) Empty() bool {
	return len(r.Found) == 0 && len(r.Clients) == 0 && len(r.Problems) == 0 && r.More == 0
}

func (r *TracesReport) String() string {
	text := strings.Join(slices.Concat(r.Found, r.Clients), ", ")
	if len(r.Problems) > 0 { // sentences, which have commas
		text = strings.Join(append(slices.DeleteFunc([]string{text}, isBlank), r.Problems...), "; ")
	}
	if r.More > 0 {
		text += fmt.Sprintf(" and %d more", r.More)
	}
	return text
}

func isBlank(text string) bool { return text == "" }

func (r *TracesReport) Marshal() ([]byte, error) {
	short := *r
	for {
		body, err := json.Marshal(short)
		if err != nil || len(body) <= messageLimit {
			return body, err
		}
		list := &short.Found
		for _, other := range []*[]string{&short.Clients, &short.Problems} {
			if len(*other) > len(*list) {
				list = other
			}
		}
		half := (len(*list) + 1) / 2
		short.More += len(*list) - half
		*list = (*list)[:half]
	}
}

// Parse reads a report from a termination message.
func Parse(message string) (*TracesReport, error) {
	r := &TracesReport{}
	d := json.NewDecoder(strings.NewReader(message))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("reading the report of a node: %w", err)
	}
	if d.More() {
		return nil, errors.New("reading the report of a node: something follows it")
	}
	return r, nil
}
