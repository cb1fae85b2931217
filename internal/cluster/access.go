package cluster

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// Right is one verb on one resource, everywhere.
type Right struct {
	Verb        string
	Group       string
	Resource    string
	Subresource string
}

func (r Right) String() string {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	if r.Group != "" {
		resource += "." + r.Group
	}
	return r.Verb + " " + resource
}

// AccessAnswer is what the authorizer said about a right.
type AccessAnswer struct {
	Right   Right
	Allowed bool
	Reason  string
}

// Access asks the authorizer about each right, by SelfSubjectAccessReview.
func (c *Cluster) Access(ctx context.Context, rights []Right) ([]AccessAnswer, error) {
	answers := make([]AccessAnswer, len(rights))
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(8)
	for i, r := range rights {
		eg.Go(func() error {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: r.Verb, Group: r.Group, Resource: r.Resource, Subresource: r.Subresource,
				},
			}}
			if err := c.Create(ctx, review); err != nil {
				return fmt.Errorf("asking for the right to %s: %w", r, err)
			}
			answers[i] = AccessAnswer{Right: r, Allowed: review.Status.Allowed, Reason: review.Status.Reason}
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return nil, err
	}
	return answers, nil
}
