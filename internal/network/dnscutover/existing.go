package dnscutover

import (
	"context"
	"errors"
	"fmt"

	"github.com/replumb/replumb/internal/network/dnsrecords"
)

// Existing are those names that have a record of their own. The others, which have none or that of
// a wildcard, are warnings: names found in objects need not be in DNS.
func Existing(ctx context.Context, all []*PairedName) ([]*PairedName, []Problem, error) {
	var out []*PairedName
	var problems []Problem
	for _, l := range all {
		missing, err := l.missing(ctx)
		switch {
		case err != nil:
			return nil, nil, err
		case missing == "":
			out = append(out, l)
		default:
			problems = append(problems, Problem{Name: l.Name.Name, Problem: missing, Warning: true})
		}
	}
	return out, problems, nil
}

func (l *PairedName) missing(ctx context.Context) (string, error) {
	p := l.Move.Provider()
	now, err := p.Get(ctx, l.Name.Name, l.Name.Type)
	var whole *dnsrecords.Error
	switch {
	case errors.As(err, &whole):
		return "", nil
	case err != nil:
		return "", err
	case len(now.Values) == 0:
		return fmt.Sprintf("there is no %s, so it stays as it is", l.Move.Title()), nil
	}
	own, ok := p.(dnsrecords.Prover)
	if !ok {
		return "", nil
	}
	exists, err := own.Exists(ctx, now)
	if err != nil || exists {
		return "", err
	}
	return fmt.Sprintf("%s is answered by the record of a wildcard, and moves with that", l.Move.Title()), nil
}
