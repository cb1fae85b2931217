package cluster

import (
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Any is a client with discovery, for kinds that the Cluster's own client has no mapping for.
func (c *Cluster) Any() (client.Client, error) {
	http, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(c.config, http)
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	a, err := client.NewWithWatch(c.config, client.Options{Scheme: c.Scheme(), Mapper: mapper, HTTPClient: http})
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	return fenced{a}, nil
}
