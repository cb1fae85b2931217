package apitest

import (
	"errors"
	"fmt"
	"time"
)

// Hurried is for a Server that is restarted often: it is killed as soon as it has not ended within
// a second, as one that serves watches does not.
func Hurried() Option {
	return func(o *options) { o.stopWithin = time.Second }
}

// SetFlag changes a flag of the API server, named without its dashes, from its next start on.
func (s *Server) SetFlag(name, value string) {
	s.env.ControlPlane.GetAPIServer().Configure().Set(name, value)
}

// Restart stops the API server, calls away, and starts it again with what etcd has.
func (s *Server) Restart(away func() error) error {
	if s.borrowed != nil {
		return errors.New("this API server belongs to a pool: start one of your own")
	}
	api := s.env.ControlPlane.GetAPIServer()
	// One that still serves watches does not end in time and is killed, which is an error here and
	// is as good. If it were there still, the start would fail.
	_ = api.Stop()
	if err := away(); err != nil {
		return err
	}
	if err := api.Start(); err != nil {
		return fmt.Errorf("starting the API server again: %w", err)
	}
	return nil
}
