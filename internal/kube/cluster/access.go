package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// Grant is the right to several verbs, with spaces between them, on one resource.
func Grant(group, resource, subresource, verbs string) []Right {
	var all []Right
	for verb := range strings.FieldsSeq(verbs) {
		all = append(all, Right{Verb: verb, Group: group, Resource: resource, Subresource: subresource})
	}
	return all
}

func unique(all []Right) []Right {
	seen := map[Right]bool{}
	return slices.DeleteFunc(slices.Clone(all), func(r Right) bool {
		before := seen[r]
		seen[r] = true
		return before
	})
}

// AccessAnswer is what the authorizer said about a right.
type AccessAnswer struct {
	Right   Right
	Allowed bool
	Reason  string
}

// Authorize asks the authorizer about each right, once. Without those that are needed to look at all it fails with a *DeniedError, which has
// all that the user lacks; of the others it is for the caller to make something.
func (c *Cluster) Authorize(ctx context.Context, rights []Right, needed func(Right) bool) ([]AccessAnswer, error) {
	answers, err := c.Access(ctx, unique(rights))
	if err != nil {
		return nil, err
	}
	blind := false
	var denied []Right
	for _, a := range answers {
		if !a.Allowed {
			denied = append(denied, a.Right)
			blind = blind || needed(a.Right)
		}
	}
	if blind {
		return nil, &DeniedError{Rights: denied}
	}
	return answers, nil
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
