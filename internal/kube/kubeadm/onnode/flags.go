package onnode

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/kube/kubeadm"
)

// FlagChange is what a program of the control plane is to have in place of what.
type FlagChange struct {
	// Program is kube-apiserver or kube-controller-manager.
	Program string
	// From and To are values of flags by their names without dashes. Values other than these are
	// not touched.
	From, To map[string]string
	// Absent flags are left absent: kubeadm gives controller managers a Service range only if it
	// gives them one for pods.
	AbsentIsRight bool
}

// String is a change as ParseFlagChange reads it.
func (c FlagChange) String() string {
	words := []string{c.Program}
	for _, name := range slices.Sorted(maps.Keys(c.To)) {
		words = append(words, name+"="+c.From[name]+">"+c.To[name])
	}
	if c.AbsentIsRight {
		words = append(words, absentIsRight)
	}
	return strings.Join(words, " ")
}

const absentIsRight = "if-there"

// ParseFlagChange reads what String writes: "PROGRAM NAME=FROM>TO...", and "if-there" at its end.
func ParseFlagChange(text string) (FlagChange, error) {
	words := strings.Fields(text)
	if len(words) < 2 || words[0] != apiServer && words[0] != controllerManager {
		return FlagChange{}, fmt.Errorf("%q does not begin with a program and a flag", text)
	}
	c := FlagChange{Program: words[0], From: map[string]string{}, To: map[string]string{}}
	for _, word := range words[1:] {
		if word == absentIsRight {
			c.AbsentIsRight = true
			continue
		}
		name, values, named := strings.Cut(word, "=")
		from, to, both := strings.Cut(values, ">")
		if !named || !both || name == "" || to == "" {
			return FlagChange{}, fmt.Errorf("%q is not NAME=FROM>TO", word)
		}
		c.From[name], c.To[name] = from, to
	}
	return c, nil
}

func manifestOf(program string) string { return filepath.Join(kubeadm.ManifestsDir, program+".yaml") }

func (h NodeFiles) manifest(program string) (*kubeadm.StaticPod, error) {
	text, err := h.read(manifestOf(program))
	if err != nil {
		return nil, err
	}
	return kubeadm.ReadStaticPod(manifestOf(program), program, text)
}

// plan is the manifest as it is, and as it is to be; the same one, if there is nothing to change.
func (h NodeFiles) plan(c FlagChange) (now, then *kubeadm.StaticPod, err error) {
	if now, err = h.manifest(c.Program); err != nil {
		return nil, nil, err
	}
	to := maps.Clone(c.To)
	for name, want := range c.To {
		if c.AbsentIsRight && !now.HasFlag(name) {
			delete(to, name)
			continue
		}
		value, err := now.Flag(name)
		if err != nil {
			return nil, nil, err
		}
		if value != want && value != c.From[name] {
			return nil, nil, &kubeadm.UnusualError{
				File: manifestOf(c.Program), Problem: fmt.Sprintf("has --%s=%s, which was to become %s from %s", name, value, want, c.From[name]),
			}
		}
	}
	then, err = now.SetFlags(to)
	return now, then, err
}

// SetFlags changes a manifest by one rename, and waits until its program is ready with it. If it is
// not in time, the former values are put back, and it is waited for again. Cut off from outside it
// goes on: nobody else can say whether the file may stay.
func (h NodeFiles) SetFlags(ctx context.Context, c FlagChange) error {
	ctx = context.WithoutCancel(ctx)
	now, then, err := h.plan(c)
	if err != nil {
		return err
	}
	file := manifestOf(c.Program)
	if string(now.Text) != string(then.Text) {
		if err := h.keep(filepath.Base(file), now.Text); err != nil {
			return err
		}
		if err := h.replace(file, then.Text); err != nil {
			return err
		}
	}
	why := h.runs(ctx, then)
	if why == nil {
		return nil
	}
	return undone(why, h.unset(ctx, c), file)
}

func (h NodeFiles) unset(ctx context.Context, c FlagChange) error {
	c.From, c.To = c.To, c.From
	now, then, err := h.plan(c)
	if err != nil {
		return err
	}
	if string(now.Text) != string(then.Text) {
		if err := h.putBack(manifestOf(c.Program), then.Text); err != nil {
			return err
		}
	}
	return h.runs(ctx, then)
}

// LookAtControlPlane refuses what is not as kubeadm makes it, and writes nothing.
func (h NodeFiles) LookAtControlPlane(certificates bool, flags ...FlagChange) error {
	for _, c := range flags {
		now, _, err := h.plan(c)
		if err != nil {
			return err
		}
		if _, err := probeOf(now); err != nil {
			return err
		}
	}
	if !certificates {
		return nil
	}
	m, err := h.manifest(apiServer)
	if err != nil {
		return err
	}
	if file, err := m.Flag("tls-cert-file"); err != nil || file != servingFile {
		return &kubeadm.UnusualError{File: manifestOf(apiServer), Problem: "does not have --tls-cert-file=" + servingFile}
	}
	p, err := h.pki()
	if err != nil {
		return err
	}
	_, err = kubeadm.Reissue(servingFile, p.serving, p.authority, nil)
	return err
}
