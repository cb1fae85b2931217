package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// Skew is by how much the API server's clock is ahead of the one that was last compared with it; zero before that.
func (c *Cluster) Skew() time.Duration {
	if c.skew == nil {
		return 0
	}
	return time.Duration(c.skew.Load())
}

// Synchronize compares a clock that has Skew added with the API server's, and corrects Skew by what is left. Without an answer, or one that
// has no time, everything stays as it was.
func (c *Cluster) Synchronize(ctx context.Context, now func() time.Time) {
	if c.skew == nil {
		return
	}
	asked := now()
	date, err := c.date(ctx)
	if answered := now(); err == nil {
		c.skew.Add(int64(behind(asked, answered, date)))
	}
}

// date is the time of an answer of the API server, cut to whole seconds (RFC 9110, 6.6.1). net/http has servers send it, also with errors.
func (c *Cluster) date(ctx context.Context) (time.Time, error) {
	caller := http.DefaultClient
	if raw, ok := c.raw.(*rest.RESTClient); ok && raw.Client != nil {
		caller = raw.Client
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.raw.Get().AbsPath("/version").URL().String(), http.NoBody)
	if err != nil {
		return time.Time{}, fmt.Errorf("asking for the time: %w", err)
	}
	answer, err := caller.Do(req)
	if err != nil {
		return time.Time{}, fmt.Errorf("asking for the time: %w", err)
	}
	_, _ = io.Copy(io.Discard, answer.Body) // or the connection would not be used again
	_ = answer.Body.Close()
	return http.ParseTime(answer.Header.Get("Date"))
}

// behind is by how much a clock is behind that of a server that answered between two moments of it, with a date that is cut to whole
// seconds; negative, if it is ahead. It is zero for a clock that may be right: the difference is known to a second and the time of the answer.
func behind(asked, answered, date time.Time) time.Duration {
	least, most := date.Sub(answered), date.Add(time.Second).Sub(asked)
	if least <= 0 && most >= 0 {
		return 0
	}
	return (least + most) / 2
}
