package apiserver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Recorded is a Server as it was once seen, to be kept in a file.
type Recorded struct {
	Address string         `json:"address"`
	SANs    []netip.Addr   `json:"sans,omitempty"`
	Names   []string       `json:"names,omitempty"`
	Ranges  []netip.Prefix `json:"ranges,omitempty"`
	// CertProblem and FlagsProblem are why certificate or ranges are unknown; else empty.
	CertProblem  string `json:"certProblem,omitempty"`
	FlagsProblem string `json:"flagsProblem,omitempty"`
	// Gives is the range of each family that it gives addresses from, where that was asked.
	Gives map[corev1.IPFamily]netip.Prefix `json:"gives,omitempty"`
}

// Record keeps what was seen of a server.
func Record(s *APIServer) Recorded {
	r := Recorded{Address: s.Address, SANs: s.SANs, Names: s.Names, Ranges: s.Ranges}
	if s.CertErr != nil {
		r.CertProblem = s.CertErr.Error()
	}
	if s.FlagsErr != nil {
		r.FlagsProblem = s.FlagsErr.Error()
	}
	return r
}

func (r *Recorded) server() APIServer {
	return APIServer{
		Address: r.Address, SANs: slices.Clone(r.SANs), Names: slices.Clone(r.Names), Ranges: slices.Clone(r.Ranges),
		CertErr: problem(r.CertProblem), FlagsErr: problem(r.FlagsProblem),
	}
}

func problem(text string) error {
	if text == "" {
		return nil
	}
	for _, known := range []error{ErrUnverified, ErrNoFlagz, ErrFlagzForbidden} {
		if before, found := strings.CutSuffix(text, known.Error()); found {
			return fmt.Errorf("%s%w", before, known)
		}
	}
	return errors.New(text)
}

// ErrNotRecorded says that a server was not looked at when the others were.
var ErrNotRecorded = errors.New("the snapshot does not tell: this API server was not looked at when it was taken")

type recording []Recorded

// NewRecorded makes an Inspector that says what was seen of servers then, and asks no one.
func NewRecorded(all []Recorded) *Inspector { return &Inspector{recorded: append(recording{}, all...)} }

func (r recording) find(address string) (*Recorded, error) {
	at := slices.IndexFunc(r, func(one Recorded) bool { return one.Address == address })
	if at < 0 {
		return nil, fmt.Errorf("API server %s: %w", address, ErrNotRecorded)
	}
	return &r[at], nil
}

func (r recording) inspect(address string) APIServer {
	one, err := r.find(address)
	if err != nil {
		return APIServer{Address: address, CertErr: err, FlagsErr: err}
	}
	return one.server()
}

func (r recording) gives(address string, family corev1.IPFamily) (netip.Prefix, error) {
	one, err := r.find(address)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p, known := one.Gives[family]; known {
		return p, nil
	}
	return netip.Prefix{}, ErrNoRange
}
