package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestServersAreLookedAtAgain: a certificate that was changed is reported after the next look, and
// a look that was cut off is not.
func TestServersAreLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		looks, s := 0, servers{}
		go s.follow(ctx, func(context.Context) []v1alpha1.APIServerReport {
			looks++
			if looks == 3 {
				cancel()
				return nil
			}
			return []v1alpha1.APIServerReport{{Address: "192.0.2.1:6443", SANs: make([]string, looks)}}
		}, func() time.Duration { return time.Minute })
		for want := 1; want < 3; want++ {
			synctest.Wait()
			if got := s.report(); len(got) != 1 || len(got[0].SANs) != want {
				t.Errorf("after look %d the report is %+v", want, got)
			}
			<-time.After(time.Minute) // of the bubble
		}
		synctest.Wait()
		if got := s.report(); len(got) != 1 || len(got[0].SANs) != 2 {
			t.Errorf("after a look that was cut off the report is %+v", got)
		}
	})
}
