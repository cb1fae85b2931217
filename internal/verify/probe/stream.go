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

const reconnectEvery = 100 * time.Millisecond

// IdentityRequest is the line an echo server answers with its Identity instead of echoing it.
const IdentityRequest = "id"

// Goodbye is an ending echo server's line that asks its client to use another connection; the
// server waits for the client to close. An end without it is a break.
const Goodbye = "bye"

// stream is the Stream kind: numbered lines over one connection, each echoed within its time-out.
type stream struct {
	target      Target
	dialer      *dialer
	reconnected func(time.Time)
	stop        context.CancelFunc
	done        chan struct{}

	mu sync.Mutex
	// tried is closed after an attempt to connect, for which requests wait initially and after a
	// goodbye.
	tried chan struct{}
	// conn is what lines are sent over; current is what is read from, also after a goodbye on it.
	conn    net.Conn
	current net.Conn
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
	if s.current != nil {
		_ = s.current.Close()
	}
	s.mu.Unlock()
	<-s.done
}

func (s *stream) keepOpen(ctx context.Context) {
	defer close(s.done)
	ticker := time.NewTicker(reconnectEvery)
	defer ticker.Stop()
	broken := false
	for ctx.Err() == nil {
		conn, lines, err := s.open(ctx)
		if err == nil {
			if broken && s.reconnected != nil {
				s.reconnected(time.Now())
			}
			broken = true
			s.connected(ctx, conn)
			err = s.read(lines)
			_ = conn.Close()
		}
		if errors.Is(err, errGoodbye) {
			broken = false
			continue
		}
		s.disconnected(err)
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

var errGoodbye = errors.New("server said goodbye")

func (s *stream) open(ctx context.Context) (net.Conn, *bufio.Scanner, error) {
	timeout := time.Duration(s.target.Timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := s.dialer.dial(ctx, "tcp", s.target.Address)
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
	if !s.target.expectsIdentity() {
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
	if err := s.target.checkIdentity(lines.Bytes()); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

func (s *stream) connected(ctx context.Context, conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.current, s.broken, s.heard = conn, conn, nil, time.Now()
	if ctx.Err() != nil {
		_ = conn.Close()
	}
	s.markTried()
}

// leave makes requests wait for the next connection, and counts unanswered ones.
func (s *stream) leave() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.broken, s.tried = nil, nil, make(chan struct{})
	return len(s.waiting)
}

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
	leaving := false
	for lines.Scan() {
		if lines.Text() == Goodbye && !leaving {
			leaving = true
			if s.leave() == 0 {
				return errGoodbye
			}
			continue
		}
		seq, err := strconv.ParseUint(strings.TrimSpace(lines.Text()), 10, 64)
		if err != nil {
			return failf(BadAnswer, "echo %q is not a sequence number", lines.Text())
		}
		s.mu.Lock()
		s.heard = time.Now()
		// An echo that is no longer waited for came after its time-out, which has been counted.
		if answer, ok := s.waiting[seq]; ok {
			answer <- nil
			delete(s.waiting, seq)
		}
		left := len(s.waiting)
		s.mu.Unlock()
		if leaving && left == 0 {
			return errGoodbye
		}
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
	sent, seq, answer, err := s.sendWhenOpen(ctx)
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

func (s *stream) sendWhenOpen(ctx context.Context) (sent time.Time, seq uint64, answer <-chan error, err error) {
	for {
		s.mu.Lock()
		tried := s.tried
		s.mu.Unlock()
		select {
		case <-tried:
		case <-ctx.Done():
			return sent, 0, nil, failf(ConnectTimeout, "open stream: %w", ctx.Err())
		}
		sent = time.Now()
		seq, answer, err = s.send(ctx)
		if !errors.Is(err, errGoodbye) { // it came while we were about to send
			return sent, seq, answer, err
		}
	}
}

// send writes the next line, under the lock, so that lines leave in order.
func (s *stream) send(ctx context.Context) (uint64, <-chan error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		select {
		case <-s.tried:
		default:
			return 0, nil, errGoodbye
		}
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

// giveUp forgets a line; a connection that has been silent since is reopened.
func (s *stream) giveUp(seq uint64, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, seq)
	if s.current != nil && s.heard.Before(sent) {
		s.broken = errors.New("nothing heard for a whole time-out")
		_ = s.current.Close()
	}
}
