package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// counter counts the requests of a client by verb, and how long they waited for their answers.
type counter struct {
	next http.RoundTripper

	mu    sync.Mutex
	calls map[string]int
	took  map[string]time.Duration
}

// counted is a configuration whose requests are counted.
func counted(config *rest.Config) (*rest.Config, *counter) {
	c := &counter{}
	c.reset()
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		c.next = next
		return c
	})
	return config, c
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	start := time.Now()
	answer, err := c.next.RoundTrip(r)
	what := verb(r)
	if err == nil && answer.StatusCode == http.StatusTooManyRequests {
		what = "429"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[what]++
	c.took[what] += time.Since(start)
	return answer, err
}

// reset begins again at zero.
func (c *counter) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls, c.took = map[string]int{}, map[string]time.Duration{}
}

// total is how many there were.
func (c *counter) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, calls := range c.calls {
		n += calls
	}
	return n
}

// seldom is what is not worth telling: what a run sends once, and not for every object.
const seldom = 0.05

// per tells the requests for each of n objects, and the mean time of one.
func (c *counter) per(n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c.calls)) {
		if float64(c.calls[what])/float64(n) < seldom {
			continue
		}
		mean := c.took[what] / time.Duration(c.calls[what])
		parts = append(parts, fmt.Sprintf("%s %.2f (%s)", what, float64(c.calls[what])/float64(n), mean.Round(100*time.Microsecond)))
	}
	return strings.Join(parts, ", ")
}

// verb as the API server would call it, with the resource: a GET without a name is a list.
func verb(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) > 0 && parts[0] == "api" {
		parts = parts[min(2, len(parts)):]
	} else {
		parts = parts[min(3, len(parts)):]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	resource, named := "", len(parts) > 1
	if len(parts) > 0 {
		resource = parts[0]
	}
	name := strings.ToLower(r.Method)
	if name == "get" && !named {
		name = "list"
	}
	return name + " " + resource
}
