package probe

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
)

// Questions and answers begin differently, so that two servers do not answer each other forever.
// Plain echo servers are good too.
const (
	question = "replumb? "
	answer   = "replumb! "
	// longestQuestion has room for a number.
	longestQuestion = 64
)

// Answer answers a question with as many other bytes; nil for no question.
func Answer(sent []byte) []byte {
	number, is := bytes.CutPrefix(sent, []byte(question))
	if !is || len(sent) > longestQuestion {
		return nil
	}
	return append([]byte(answer), number...)
}

// IsAnswer reports whether a datagram is what an echo server answers.
func IsAnswer(sent []byte) bool { return bytes.HasPrefix(sent, []byte(answer)) }

// datagram is the UDP kind. Datagrams are not repeated: a lost one is a loss.
type datagram struct {
	target Target
	dialer *dialer
	next   atomic.Uint64
}

// newDatagram counts from a random number, which tells late echoes to an earlier socket of the
// port.
func newDatagram(target Target, dialer *dialer) *datagram {
	d := &datagram{target: target, dialer: dialer}
	d.next.Store(rand.Uint64() >> 1) //nolint:gosec // it tells datagrams apart, and keeps no one out
	return d
}

func (d *datagram) close() {}

func (d *datagram) do(ctx context.Context) error {
	began := time.Now()
	conn, err := d.dialer.dial(ctx, "udp", d.target.Address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	number := strconv.FormatUint(d.next.Add(1), 10)
	if _, err := conn.Write([]byte(question + number)); err != nil {
		return fmt.Errorf("send datagram: %w", err)
	}
	buffer := make([]byte, 2048)
	var wrong string
	for {
		n, err := conn.Read(buffer)
		switch {
		case err != nil && wrong != "" && isTimeout(err):
			return failf(BadAnswer, "echo of datagram %q is %.60q", number, wrong)
		case err != nil:
			return fmt.Errorf("no echo of datagram %q: %w", number, err)
		case string(buffer[:n]) == answer+number, string(buffer[:n]) == question+number:
			d.dialer.plain.heard(time.Since(began))
			return nil
		}
		wrong = string(buffer[:n])
	}
}
