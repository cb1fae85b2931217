package proxyrules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// patience is for others that hold iptables' lock, and for a hundred thousand rules.
const patience = 2 * time.Minute

// Programs are those by which kube-proxy writes rules: which of iptables' two kinds of tables is
// meant depends on them. They are in kube-proxy's own image, in which this runs, or, where
// kube-proxy is a program of the node, on the node.
type Programs struct {
	// Root is where the root of the node is mounted; empty in kube-proxy's image.
	Root string
}

// dirs are where a node has programs, in the order in which k3s looks: its own, which it has
// unpacked, come last (stageAndRun in cmd/k3s/main.go of github.com/k3s-io/k3s).
func dirs() []string {
	return []string{
		"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/var/lib/rancher/k3s/data/current/bin/aux",
	}
}

// run runs a program. The error is fs.ErrNotExist if there is none.
func (p Programs) run(ctx context.Context, input, name string, args ...string) (string, error) {
	if p.Root == "" {
		return p.runAt(ctx, input, name, args...)
	}
	for _, dir := range dirs() { // links in the node's root lead from there, so only a start tells
		out, err := p.runAt(ctx, input, path.Join(dir, name), args...)
		if !errors.Is(err, fs.ErrNotExist) {
			return out, err
		}
	}
	return "", fmt.Errorf("the node has no program %s: %w", name, fs.ErrNotExist)
}

func (p Programs) runAt(ctx context.Context, input, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // those named in this file
	if p.Root != "" {
		if err := enter(cmd, p.Root); err != nil {
			return "", err
		}
		cmd.Env = []string{"PATH=" + strings.Join(dirs(), ":")} // k3s' iptables is a script that looks for others
	}
	cmd.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", path.Base(program), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// family is one of addresses, as the programs call it.
type family struct{ iptables, nft string }

// families are those that the node has: of one that its kernel was started without, programs fail.
func families() []family {
	all := []family{{"iptables", "ip"}}
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		all = append(all, family{"ip6tables", "ip6"})
	}
	return all
}

// EarlierCopy is found by Copy where a copy of an earlier run leads already.
const EarlierCopy = "an earlier copy"

// Copy makes the copy of the rules that kube-proxy has. The report says of which modes, and what
// kube-proxy says of itself. Its problems are what would keep packets from Services in the mode to
// come, and then nothing is written.
func (p Programs) Copy(ctx context.Context, to string) (*nodecleanup.TracesReport, error) {
	r := &nodecleanup.TracesReport{Found: says(ctx)}
	led, _, err := p.frontends(ctx, to, TheCopy)
	if err != nil {
		return nil, err
	}
	if len(led) > 0 {
		r.Found = append(r.Found, EarlierCopy)
	}
	for _, f := range families() {
		save, err := p.run(ctx, "", f.iptables+"-save", "-t", "filter")
		if err != nil {
			return nil, err
		}
		if why := Stranded(save); to == NFTables && why != "" {
			r.Problems = append(r.Problems, f.iptables+": "+why)
		}
	}
	if len(r.Problems) > 0 {
		return r, nil
	}
	for _, f := range families() {
		for mode, copies := range map[string]func(context.Context, family) (bool, error){IPTables: p.copyChains, NFTables: p.copyTable} {
			copied, err := copies(ctx, f)
			if err != nil {
				return nil, err
			}
			if copied {
				r.Found = append(r.Found, mode)
			}
		}
	}
	return r, nil
}

// Refresh copies the rules of the mode before once more, if kube-proxy has them still: a copy that
// leads for as long as a person takes would lead to pods that have gone.
func (p Programs) Refresh(ctx context.Context, to string) error {
	err := p.copyFormer(ctx, to)
	if err != nil { // kube-proxy may have begun to remove them in between
		err = p.copyFormer(ctx, to)
	}
	return err
}

func (p Programs) copyFormer(ctx context.Context, to string) error {
	for _, f := range families() {
		if to == IPTables {
			if _, err := p.copyTable(ctx, f); err != nil {
				return err
			}
			continue
		}
		if _, err := p.copyChains(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// copyChains copies what iptables has of a family.
func (p Programs) copyChains(ctx context.Context, f family) (bool, error) {
	save, err := p.run(ctx, "", f.iptables+"-save")
	if err != nil {
		return false, err
	}
	restore := copyIPTables(save)
	if restore == "" {
		return false, nil
	}
	_, err = p.run(ctx, restore, f.iptables+"-restore", "--noflush", "--wait=10")
	return err == nil, err
}

// frontends are those that the copy, or mode ipvs, leads from, and kube-proxy in a mode.
func (p Programs) frontends(ctx context.Context, mode string, by Against) (led, have Frontends, err error) {
	if by != TheCopy {
		return p.besideIPVS(ctx, mode, by)
	}
	led, have = Frontends{}, Frontends{}
	for _, f := range families() {
		save, err := p.run(ctx, "", f.iptables+"-save", "-t", "nat")
		if err != nil {
			return nil, nil, err
		}
		led.ofIPTables(save, true)
		if mode == IPTables {
			have.ofIPTables(save, false)
		} else if err := p.takeMaps(ctx, have, f, proxyTable); err != nil {
			return nil, nil, err
		}
		if err := p.takeMaps(ctx, led, f, nodecleanup.CopiedTable); err != nil {
			return nil, nil, err
		}
	}
	return led, have, nil
}

func (p Programs) hasTable(ctx context.Context, f family, name string) (bool, error) {
	list, err := p.run(ctx, "", "nft", "list", "tables", f.nft)
	for line := range strings.Lines(list) {
		if strings.TrimSpace(line) == "table "+f.nft+" "+name {
			return true, err
		}
	}
	return false, err
}

func (p Programs) copyTable(ctx context.Context, f family) (bool, error) {
	has, err := p.hasTable(ctx, f, proxyTable)
	if err != nil || !has {
		return false, err
	}
	list, err := p.run(ctx, "", "nft", "list", "table", f.nft, proxyTable)
	if err != nil {
		return false, err
	}
	text, err := copyNFTables(f.nft, list)
	if err != nil {
		return false, err
	}
	_, err = p.run(ctx, text, "nft", "-f", "-")
	return err == nil, err
}

// NoRules is the problem of a kube-proxy that has no rules at all. Without a copy, as after a
// restart of the node, nothing else would show that.
const NoRules = "no rules"

// Compare finds what the copy leads to and kube-proxy, in its new mode, does not: those are the
// problems of the report. It also has what kube-proxy says of itself. Beside mode ipvs nothing was
// copied, and what the other mode has is there itself.
func (p Programs) Compare(ctx context.Context, mode string, by Against) (*nodecleanup.TracesReport, error) {
	led, have, err := p.frontends(ctx, mode, by)
	if err != nil {
		return nil, err
	}
	found := append(says(ctx), fmt.Sprintf("%d of %d", len(have), len(led)))
	r := &nodecleanup.TracesReport{Found: found, Problems: led.Without(have)}
	if len(have) == 0 {
		r.Problems = append([]string{NoRules}, r.Problems...)
	}
	return r, nil
}

// Await compares until nothing is missing, or the time is over.
func (p Programs) Await(ctx context.Context, mode string, by Against, limit time.Duration) (*nodecleanup.TracesReport, error) {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		r, err := p.Compare(ctx, mode, by)
		if err != nil || len(r.Problems) == 0 {
			return r, err
		}
		select {
		case <-within.Done():
			return r, ctx.Err()
		case <-tick.C:
		}
	}
}

func (p Programs) takeMaps(ctx context.Context, into Frontends, f family, table string) error {
	has, err := p.hasTable(ctx, f, table)
	if err != nil || !has {
		return err
	}
	for _, m := range []string{"service-ips", "service-nodeports"} {
		list, err := p.run(ctx, "", "nft", "--json", "list", "map", f.nft, table, m)
		if err != nil {
			return err
		}
		if err := into.ofNFTables(list); err != nil {
			return err
		}
	}
	return nil
}
