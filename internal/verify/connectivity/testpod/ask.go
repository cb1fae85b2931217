package testpod

import (
	"context"
	"net"
	"strings"

	"golang.org/x/sync/errgroup"
)

// The beginnings of questions, which say how they are asked.
const (
	// Dial connects to host:port until that answers, or time is up.
	Dial = "dial="
	// Try connects once, or twice, after everything else has been asked: what a policy forbids, or
	// nothing answers at.
	Try = "try="
	// LookUp asks the cluster's DNS for the addresses of a name, over and over too.
	LookUp = "lookup="
)

// Yes and No are the answers to a question, a byte each.
const (
	Yes = '1'
	No  = '0'
)

// Ask finds an answer to every question, in their order.
func Ask(ctx context.Context, questions []string) string {
	answers := make([]byte, len(questions))
	var eg errgroup.Group
	eg.SetLimit(64)
	each := func(late bool) {
		for i, q := range questions {
			if strings.HasPrefix(q, Try) == late {
				eg.Go(func() error {
					answers[i] = No
					if ask(ctx, q) == nil {
						answers[i] = Yes
					}
					return nil
				})
			}
		}
		_ = eg.Wait() // answers are kept
	}
	each(false)
	each(true)
	return string(answers)
}

func ask(ctx context.Context, question string) error {
	if address, ok := strings.CutPrefix(question, Dial); ok {
		return until(ctx, address)
	}
	if name, ok := strings.CutPrefix(question, LookUp); ok {
		return insist(ctx, func() error {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			_, err := new(net.Resolver).LookupHost(ctx, name)
			return err
		})
	}
	address := strings.TrimPrefix(question, Try)
	err := dial(context.WithoutCancel(ctx), address)
	if err != nil { // one lost packet is no policy
		err = dial(context.WithoutCancel(ctx), address)
	}
	return err
}
