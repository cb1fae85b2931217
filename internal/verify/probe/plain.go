package probe

import (
	"sync/atomic"
	"time"
)

// prompt is how long a call waits in the kernel before Go's poller takes over. Faster answers need
// neither a poller entry nor a goroutine switch.
const prompt = time.Millisecond

// plain connects for one target by its own system calls, and waits in the kernel while answers are
// prompt. After a slow one, requests use Go's poller until they are prompt again, so that none
// holds up another.
type plain struct{ slow atomic.Bool }

func (p *plain) heard(took time.Duration) {
	if p != nil && took < prompt {
		p.slow.Store(false)
	}
}
