package cluster

import (
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Any is a client for all kinds that the API server serves, also those defined later. It uses
// discovery, which the Cluster's own client does without.
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
