package cluster

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/replumb/replumb/internal/kube/access"
)

// Authorize asks the authorizer about each right of some roles. It returns a *DeniedError with all
// denied rights if one is among them without which nothing can be read; others are the caller's to
// judge.
func (c *Cluster) Authorize(ctx context.Context, roles access.Roles, needed func(access.Right) bool) ([]access.Answer, error) {
	answers, err := c.Access(ctx, roles.Rights())
	if err != nil {
		return nil, err
	}
	blind := false
	var denied []access.Answer
	for i := range answers {
		a := &answers[i]
		role := roles.Granting(a.Right)
		a.Role, a.Optional = role.Name, !roles.Needs(a.Right)
		if !a.Allowed {
			denied = append(denied, *a)
			blind = blind || needed(a.Right)
		}
	}
	if blind {
		return nil, &access.DeniedError{Missing: denied}
	}
	return answers, nil
}

// Access asks the authorizer about each right, by SelfSubjectAccessReview.
func (c *Cluster) Access(ctx context.Context, rights []access.Right) ([]access.Answer, error) {
	answers := make([]access.Answer, len(rights))
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(8)
	for i, r := range rights {
		eg.Go(func() error {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: r.Question()}
			if err := c.Create(ctx, review); err != nil {
				return fmt.Errorf("asking for the right to %s: %w", r, err)
			}
			answers[i] = access.Answer{Right: r, Allowed: review.Status.Allowed, Reason: review.Status.Reason}
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return nil, err
	}
	return answers, nil
}
