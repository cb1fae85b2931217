package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/machine"
)

const (
	// knockPatience is how long a connection may take: the first packet that is lost is sent again after a second.
	knockPatience = 3 * time.Second
	// knockBurst is as many connections as are made at once by one who is late.
	knockBurst = 50
)

// door is an address at which connections are made, and what became of them.
type door struct {
	at netip.AddrPort
	// every is the time between two, next when the next is due. None is from end on, if that is set.
	every     time.Duration
	next, end time.Time
	tally     knocks
}

// knocks are connections, and how many of them were refused, were not answered within knockPatience, or failed otherwise.
type knocks struct {
	Tried, Refused, Unanswered, Other int
	// First and Last are when the first and the last of those were begun that did not come about.
	First, Last time.Time
}

// Failed are those that did not come about.
func (k knocks) Failed() int { return k.Refused + k.Unanswered + k.Other }

func (k *knocks) add(began time.Time, err error) {
	k.Tried++
	switch {
	case err == nil:
		return
	case errors.Is(err, unix.ECONNREFUSED):
		k.Refused++
	case errors.Is(err, unix.ETIMEDOUT):
		k.Unanswered++
	default:
		k.Other++
	}
	if k.First.IsZero() || began.Before(k.First) {
		k.First = began
	}
	if began.After(k.Last) {
		k.Last = began
	}
}

// knocker makes new connections from a machine, each to be closed at once, at a steady rate at each open door.
type knocker struct {
	mu    sync.Mutex
	doors map[string]*door
}

// knock starts a knocker that works until the test ends.
func knock(t *testing.T, from *machine.Handle) *knocker {
	t.Helper()
	k := &knocker{doors: map[string]*door{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- from.Inside(ctx, func() { k.work(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return k
}

// open has connections made at a door, so many a second, until close. What was counted there before is forgotten.
func (k *knocker) open(name string, at netip.AddrPort, rate int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.doors[name] = &door{at: at, every: time.Second / time.Duration(rate), next: time.Now()}
}

// close has no more connections made at a door after a while.
func (k *knocker) close(name string, after time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.doors[name]; d != nil {
		d.end = time.Now().Add(after)
	}
}

// seen is what became of the connections at a door.
func (k *knocker) seen(name string) knocks {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.doors[name]; d != nil {
		return d.tally
	}
	return knocks{}
}

// attempt is a connection that is neither there nor refused yet.
type attempt struct {
	door  *door
	fd    int
	began time.Time
}

// work is the loop: connections are begun when they are due, and looked at once they can be written to.
func (k *knocker) work(ctx context.Context) {
	var pending []attempt
	for ctx.Err() == nil {
		pending = append(pending, k.due(time.Now())...)
		polled := make([]unix.PollFd, len(pending))
		for i, a := range pending {
			polled[i] = unix.PollFd{Fd: int32(a.fd), Events: unix.POLLOUT}
		}
		_, _ = unix.Poll(polled, 1) // it is looked at all of them in any case
		var open []attempt
		for i, a := range pending {
			switch {
			case polled[i].Revents != 0:
				code, err := unix.GetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_ERROR)
				if err == nil && code != 0 {
					err = unix.Errno(code)
				}
				k.over(a, err)
			case time.Since(a.began) > knockPatience:
				k.over(a, unix.ETIMEDOUT)
			default:
				open = append(open, a)
			}
		}
		pending = open
	}
	for _, a := range pending {
		_ = unix.Close(a.fd)
	}
}

// due begins what is due by now.
func (k *knocker) due(now time.Time) (begun []attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.doors {
		for range knockBurst {
			if d.next.After(now) || (!d.end.IsZero() && d.next.After(d.end)) {
				break
			}
			d.next = d.next.Add(d.every)
			fd, err := begin(d.at)
			if err != nil {
				d.tally.add(now, err)
				continue
			}
			begun = append(begun, attempt{d, fd, now})
		}
	}
	return begun
}

// begin begins a connection, which is reset when it is closed, so that its port is free again.
func begin(to netip.AddrPort) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if err != nil && err != unix.EINPROGRESS {
		_ = unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

func (k *knocker) over(a attempt, err error) {
	_ = unix.Close(a.fd)
	k.mu.Lock()
	defer k.mu.Unlock()
	a.door.tally.add(a.began, err)
}

func (k knocks) String() string {
	text := fmt.Sprintf("%d of %d connections failed", k.Failed(), k.Tried)
	if k.Failed() > 0 {
		text += fmt.Sprintf(" (%d refused, %d without an answer, %d otherwise), for %s", k.Refused, k.Unanswered, k.Other,
			k.Last.Sub(k.First).Round(time.Millisecond))
	}
	return text
}
