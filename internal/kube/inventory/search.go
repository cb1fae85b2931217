package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/references"
)

// Kinds that nobody has heard of are searched for as long as this, all together and each.
const (
	searchTime     = 30 * time.Second
	searchTimeEach = 10 * time.Second
)

// booked are kinds in which networks keep who has which address: there are as many as pods, and
// nothing in them was written by people.
func booked() []string {
	return []string{
		"blockaffinities." + cluster.CalicoGroup, "caliconodestatuses." + cluster.CalicoGroup, "felixconfigurations." + cluster.CalicoGroup,
		"ipamblocks." + cluster.CalicoGroup, "ipamconfigs." + cluster.CalicoGroup, "ipamhandles." + cluster.CalicoGroup,
		"ciliumendpoints." + ciliumGroup, "ciliumendpointslices." + ciliumGroup, "ciliumidentities." + ciliumGroup, "ciliumnodes." + ciliumGroup,
	}
}

func isSearched(name string) bool {
	known := names(slices.Concat(policyKinds(), settingKinds(), neighbourKinds()))
	return !slices.Contains(known, name) && !slices.Contains(booked(), name) && !strings.HasSuffix(name, "."+v1alpha1.GroupVersion.Group)
}

// search looks through all custom resources that replumb does not know: values of releases,
// templates of nodes, whatever has fields for people to fill in. A kind that it could not look at
// is in Unsearched, and keeps no other from being looked at.
func search(ctx context.Context, c *cluster.Cluster, scanner *references.Scanner, found *Scan) error {
	var kinds []customKind
	var rights []access.Right
	for _, name := range slices.Sorted(maps.Keys(found.defined)) {
		resource, group, _ := strings.Cut(name, ".")
		if isSearched(name) && found.defined[name] != "" {
			kinds = append(kinds, customKind{group: group, version: found.defined[name], resource: resource})
			rights = append(rights, access.Grant(group, resource, "", "list")...)
		}
	}
	answers, err := c.Access(ctx, rights) // a refused request would stand in the audit log
	if err != nil {
		return err
	}
	for i, k := range kinds {
		if !answers[i].Allowed {
			found.noteUnsearched(k, "the user may not list them")
		}
	}
	var mu sync.Mutex
	limited, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	var eg errgroup.Group
	eg.SetLimit(scans)
	for i, k := range kinds {
		if !answers[i].Allowed {
			continue
		}
		eg.Go(func() error {
			each, cancel := context.WithTimeout(limited, searchTimeEach)
			defer cancel()
			err := eachOf(each, c, k, func(o *unstructured.Unstructured) {
				mu.Lock()
				defer mu.Unlock()
				found.References = append(found.References, scanner.Find(o)...)
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil || apierrors.IsNotFound(err):
			case each.Err() != nil:
				found.noteUnsearched(k, "there was no time for all of them")
			default:
				found.noteUnsearched(k, err.Error())
			}
			return nil
		})
	}
	_ = eg.Wait() // none returns an error
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("looking through custom resources: %w", err)
	}
	return nil
}

func (i *Scan) noteUnsearched(k customKind, why string) {
	if i.Unsearched == nil {
		i.Unsearched = map[string]string{}
	}
	i.Unsearched[k.name()] = why
}
