package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// Skew is the lead of the API server's clock at the last Synchronize, or zero.
func (c *Cluster) Skew() time.Duration {
	if c.skew == nil {
		return 0
	}
	return time.Duration(c.skew.Load())
}

// Synchronize compares a clock, to which Skew is added, with the API server's, and corrects Skew by
// the difference. Without an answer that has a date nothing changes.
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

// date is the Date of an answer, cut to whole seconds (RFC 9110, 6.6.1); net/http sends it with
// errors too.
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

// behind is the lag of a clock behind a server that answered between two of its moments with a date
// cut to whole seconds. It is zero for a clock that may be right within that second and the delay.
func behind(asked, answered, date time.Time) time.Duration {
	least, most := date.Sub(answered), date.Add(time.Second).Sub(asked)
	if least <= 0 && most >= 0 {
		return 0
	}
	return (least + most) / 2
}
