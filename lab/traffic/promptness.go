package traffic

import (
	"errors"
	"fmt"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

// Promptness is by how much answers may be worse than those of a baseline on the same machine. A packet that is dropped is sent again, so
// that a change which drops packets for seconds loses no request and shows in this alone.
type Promptness struct {
	// Gap is how much longer than in the baseline no request of any client may be answered.
	Gap time.Duration
	// Late is the part of all requests that may be answered late beyond those of the baseline.
	Late float64
}

// OfServices is the promptness of moves of Services: nothing is restarted, and a packet that is dropped would be sent again after one second,
// and then after three.
func OfServices() Promptness { return Promptness{Gap: 1500 * time.Millisecond, Late: 0.001} }

// OfPods is the promptness of moves in which name servers and tunnels are replaced. They lose datagrams, and resolvers wait five seconds for each.
func OfPods() Promptness { return Promptness{Gap: 12 * time.Second, Late: 0.01} }

// Check says what of the answers is worse than it may be. Stretches in which the client itself was behind its schedule are not held against them.
func (p Promptness) Check(baseline, answers probe.Stats) error {
	if baseline.Sent == 0 || answers.Sent == 0 {
		return nil
	}
	var worse []error
	if may := baseline.LongestGap + answers.Behind + p.Gap; answers.LongestGap > may {
		worse = append(
			worse,
			fmt.Errorf("nothing was answered for %s, where it was %s before; it may be %s", answers.LongestGap.Round(time.Millisecond),
				baseline.LongestGap.Round(time.Millisecond), may.Round(time.Millisecond)),
		)
	}
	before := float64(baseline.Late) / float64(baseline.Sent)
	if may := max(1, int((before+p.Late)*float64(answers.Sent))); answers.Late > may {
		worse = append(
			worse,
			fmt.Errorf("%d of %d answers were late, where %d of %d were before; %d may be", answers.Late, answers.Sent, baseline.Late,
				baseline.Sent, may),
		)
	}
	return errors.Join(worse...)
}
