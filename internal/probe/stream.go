package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// reconnectEvery paces attempts to open a broken stream again.
const reconnectEvery = 100 * time.Millisecond

// IdentityRequest is the line an echo server answers with its Identity instead of echoing it.
const IdentityRequest = "id"

// stream is the Stream kind: numbered lines over one long-lived connection, each to be echoed within its time-out.
type stream struct {
	target      Target
	dialer      *dialer
	reconnected func(time.Time)
	stop        context.CancelFunc
	done        chan struct{}
	// tried is closed when the first attempt to connect has ended; until then requests wait instead of failing.
	tried chan struct{}

	mu      sync.Mutex
	conn    net.Conn
	broken  error
	next    uint64
	waiting map[uint64]chan error
	heard   time.Time
}

func newStream(target Target, dialer *dialer, reconnected func(time.Time)) *stream {
	ctx, stop := context.WithCancel(context.Background())
	s := &stream{
		target: target, dialer: dialer, reconnected: reconnected, stop: stop,
		done: make(chan struct{}), tried: make(chan struct{}), waiting: map[uint64]chan error{},
	}
	go s.keepOpen(ctx)
	return s
}

func (s *stream) close() {
	s.stop()
	s.mu.Lock()
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.mu.Unlock()
	<-s.done
}

// keepOpen connects, reads until the connection breaks, and connects again.
func (s *stream) keepOpen(ctx context.Context) {
	defer close(s.done)
	ticker := time.NewTicker(reconnectEvery)
	defer ticker.Stop()
	opened := false
	for ctx.Err() == nil {
		conn, lines, err := s.open(ctx)
		if err == nil {
			if opened {
				s.reconnected(time.Now())
			}
			opened = true
			s.connected(ctx, conn)
			err = s.read(lines)
			_ = conn.Close()
		}
		s.disconnected(err)
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

func (s *stream) open(ctx context.Context) (net.Conn, *bufio.Scanner, error) {
	timeout := time.Duration(s.target.Timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := s.dialer.dial(ctx, s.target.Address)
	if err != nil {
		return nil, nil, err
	}
	lines := bufio.NewScanner(conn)
	if err := s.identify(conn, lines, timeout); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, lines, nil
}

func (s *stream) identify(conn net.Conn, lines *bufio.Scanner, timeout time.Duration) error {
	if s.target.ExpectClientAddress == "" {
		return nil
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(IdentityRequest + "\n")); err != nil {
		return fmt.Errorf("ask server for its identity: %w", err)
	}
	if !lines.Scan() {
		return fmt.Errorf("ask server for its identity: %w", endOf(lines))
	}
	if err := checkClient(lines.Bytes(), s.target.ExpectClientAddress); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

func (s *stream) connected(ctx context.Context, conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.broken, s.heard = conn, nil, time.Now()
	if ctx.Err() != nil {
		_ = conn.Close()
	}
	s.markTried()
}

// disconnected fails everything under way: those echoes will not come.
func (s *stream) disconnected(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.broken = nil, err
	for seq, answer := range s.waiting {
		answer <- err
		delete(s.waiting, seq)
	}
	s.markTried()
}

func (s *stream) markTried() {
	select {
	case <-s.tried:
	default:
		close(s.tried)
	}
}

func (s *stream) read(lines *bufio.Scanner) error {
	for lines.Scan() {
		seq, err := strconv.ParseUint(strings.TrimSpace(lines.Text()), 10, 64)
		if err != nil {
			return failf(BadAnswer, "echo %q is not a sequence number", lines.Text())
		}
		s.mu.Lock()
		s.heard = time.Now()
		// An echo nobody waits for any more came after its time-out, which has been counted.
		if answer, ok := s.waiting[seq]; ok {
			answer <- nil
			delete(s.waiting, seq)
		}
		s.mu.Unlock()
	}
	return endOf(lines)
}

func endOf(lines *bufio.Scanner) error {
	if err := lines.Err(); err != nil {
		return err
	}
	return failf(Closed, "server closed the connection")
}

func (s *stream) do(ctx context.Context) error {
	select {
	case <-s.tried:
	case <-ctx.Done():
		return failf(ConnectTimeout, "open stream: %w", ctx.Err())
	}
	sent := time.Now()
	seq, answer, err := s.send(ctx)
	if err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		s.giveUp(seq, sent)
		return failf(Timeout, "no echo of line %d", seq)
	}
}

// send writes the next line; under the lock, so that lines leave in order.
func (s *stream) send(ctx context.Context) (uint64, <-chan error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		if s.broken == nil {
			return 0, nil, failf(Closed, "stream is closed")
		}
		return 0, nil, s.broken
	}
	s.next++
	seq := s.next
	if deadline, ok := ctx.Deadline(); ok {
		if err := s.conn.SetWriteDeadline(deadline); err != nil {
			return 0, nil, err
		}
	}
	if _, err := s.conn.Write(append(strconv.AppendUint(nil, seq, 10), '\n')); err != nil {
		// A half-written line spoils all later ones: have the reader notice and reconnect.
		_ = s.conn.Close()
		return 0, nil, fmt.Errorf("send line %d: %w", seq, err)
	}
	answer := make(chan error, 1)
	s.waiting[seq] = answer
	return seq, answer, nil
}

// giveUp forgets a line. A connection on which nothing was heard since it was sent is dead and is opened again.
func (s *stream) giveUp(seq uint64, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, seq)
	if s.conn != nil && s.heard.Before(sent) {
		s.broken = errors.New("nothing heard for a whole time-out")
		_ = s.conn.Close()
	}
}
