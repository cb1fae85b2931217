package nodecleanup

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// CiliumAgent asks Cilium's agent by its local socket (api/v1 in github.com/cilium/cilium).
type CiliumAgent struct {
	// Socket is its path; Healthz is an address that must take connections, as kube-proxy's does,
	// if not empty.
	Socket, Healthz string
	// Timeout is how long the agent may take to answer.
	Timeout time.Duration
}

const (
	// statusLimit is more than an agent has to say.
	statusLimit = 8 << 20
	// healthzTime is how long an agent that answers may take to say that it is well.
	healthzTime = 3 * time.Second
	// replacement begins what is found of an agent's kube-proxy replacement.
	replacement = "kube-proxy-replacement "
	// HealthzAnswers is found where Healthz does.
	HealthzAnswers = "healthz answers"
)

// Replaces is what is found of an agent that does the work of kube-proxy, or does not.
func Replaces(does bool) string {
	if does {
		return replacement + "True"
	}
	return replacement + "False"
}

// Ask asks until the agent answers. One that does not is a problem.
func (a CiliumAgent) Ask(ctx context.Context) (*TracesReport, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	r, mode := &TracesReport{}, ""
	err := until(ctx, func() (err error) {
		mode, err = a.mode(ctx)
		return err
	})
	if err != nil {
		r.Problems = append(r.Problems, fmt.Sprintf("Cilium's agent does not say whether it replaces kube-proxy: %v", err))
		return r, nil
	}
	r.Found = append(r.Found, replacement+mode)
	if a.Healthz == "" {
		return r, nil
	}
	short, end := context.WithTimeout(ctx, healthzTime) // who asks has an agent start again that does not answer
	defer end()
	if until(short, func() error { return dial(short, a.Healthz) }) == nil {
		r.Found = append(r.Found, HealthzAnswers)
	}
	return r, nil
}

func (a CiliumAgent) mode(ctx context.Context) (string, error) {
	var d net.Dialer
	c := &http.Client{Timeout: a.Timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", a.Socket) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/v1/healthz", nil)
	if err != nil {
		return "", err
	}
	answer, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answers %s", answer.Status)
	}
	var status struct {
		Cilium      struct{ State string }
		Replacement struct{ Mode string } `json:"kube-proxy-replacement"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, statusLimit)).Decode(&status); err != nil {
		return "", fmt.Errorf("reading its answer: %w", err)
	}
	switch {
	case status.Cilium.State == "Failure":
		return "", fmt.Errorf("its state is %.60q", status.Cilium.State)
	case status.Replacement.Mode != "True" && status.Replacement.Mode != "False":
		return "", fmt.Errorf("its kube-proxy-replacement is %.60q", status.Replacement.Mode)
	}
	return status.Replacement.Mode, nil
}
