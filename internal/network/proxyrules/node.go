package proxyrules

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// patience is for others that hold iptables' lock, and for a hundred thousand rules.
const patience = 2 * time.Minute

// run runs one of the programs by which kube-proxy writes rules, of its own image: which of
// iptables' two kinds of tables it uses depends on them.
func run(ctx context.Context, input, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // those named in this file
	cmd.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(errs.String()))
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

// Copy makes the copy of the rules that kube-proxy has. The report says what was copied; its
// problems are what would keep packets from Services in the mode to come, and then nothing is
// written.
func Copy(ctx context.Context, to string) (*nodecleanup.TracesReport, error) {
	r := &nodecleanup.TracesReport{}
	saves := map[family]string{}
	for _, f := range families() {
		save, err := run(ctx, "", f.iptables+"-save")
		if err != nil {
			return nil, err
		}
		saves[f] = save
		if why := Stranded(save); to == NFTables && why != "" {
			r.Problems = append(r.Problems, f.iptables+": "+why)
		}
	}
	if len(r.Problems) > 0 {
		return r, nil
	}
	for _, f := range families() {
		if restore := CopyIPTables(saves[f]); restore != "" {
			if _, err := run(ctx, restore, f.iptables+"-restore", "--noflush", "--wait=10"); err != nil {
				return nil, err
			}
			r.Found = append(r.Found, "rules of "+f.iptables)
		}
		copied, err := copyTable(ctx, f)
		if err != nil {
			return nil, err
		}
		if copied {
			r.Found = append(r.Found, "table "+f.nft+" "+proxyTable)
		}
	}
	return r, nil
}

func hasTable(ctx context.Context, f family, name string) (bool, error) {
	list, err := run(ctx, "", "nft", "list", "tables", f.nft)
	for line := range strings.Lines(list) {
		if strings.TrimSpace(line) == "table "+f.nft+" "+name {
			return true, err
		}
	}
	return false, err
}

func copyTable(ctx context.Context, f family) (bool, error) {
	has, err := hasTable(ctx, f, proxyTable)
	if err != nil || !has {
		return false, err
	}
	list, err := run(ctx, "", "nft", "list", "table", f.nft, proxyTable)
	if err != nil {
		return false, err
	}
	text, err := CopyNFTables(f.nft, list)
	if err != nil {
		return false, err
	}
	_, err = run(ctx, text, "nft", "-f", "-")
	return err == nil, err
}

// Compare finds what the copy leads to and kube-proxy, in its new mode, does not: those are the
// problems of the report.
func Compare(ctx context.Context, mode string) (*nodecleanup.TracesReport, error) {
	led, have := Frontends{}, Frontends{}
	for _, f := range families() {
		save, err := run(ctx, "", f.iptables+"-save", "-t", "nat")
		if err != nil {
			return nil, err
		}
		led.ofIPTables(save, true)
		if mode == IPTables {
			have.ofIPTables(save, false)
		} else if err := takeMaps(ctx, have, f, proxyTable); err != nil {
			return nil, err
		}
		if err := takeMaps(ctx, led, f, nodecleanup.CopiedTable); err != nil {
			return nil, err
		}
	}
	return &nodecleanup.TracesReport{Found: []string{fmt.Sprintf("%d of %d", len(have), len(led))}, Problems: led.Without(have)}, nil
}

// Await compares until nothing is missing, or the time is over.
func Await(ctx context.Context, mode string, limit time.Duration) (*nodecleanup.TracesReport, error) {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		r, err := Compare(ctx, mode)
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

func takeMaps(ctx context.Context, into Frontends, f family, table string) error {
	has, err := hasTable(ctx, f, table)
	if err != nil || !has {
		return err
	}
	for _, m := range []string{"service-ips", "service-nodeports"} {
		list, err := run(ctx, "", "nft", "--json", "list", "map", f.nft, table, m)
		if err != nil {
			return err
		}
		if err := into.ofNFTables(list); err != nil {
			return err
		}
	}
	return nil
}
