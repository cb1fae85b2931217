package probe

import (
	"sync/atomic"
	"time"
)

// prompt is for how long a call waits in the kernel for the other side before it is left to Go's poller. What is answered within takes neither an
// entry in the poller, nor a goroutine that is put aside and woken up.
const prompt = time.Millisecond

// plain makes connections for one target by system calls of its own. As long as the other side answers at once, it waits for it in the kernel,
// and keeps its processor; when it does not, requests are left to Go's poller until it does again: one that hangs must hold up no other.
type plain struct{ slow atomic.Bool }

func (p *plain) heard(took time.Duration) {
	if p != nil && took < prompt {
		p.slow.Store(false)
	}
}
