// Command bench-servicecidr measures what replumb's own care costs: it moves thousands of Services on an API server
// without nodes, and sends the same writes by a bare client in the same run. Run it by `make bench-servicecidr`.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
)

type options struct {
	services []int
	forms    []v1alpha1.BridgeForm
	slices   int
	replumb  string
	profile  string
	parallel int
	// bare is whether bare clients move the Services as well; inFlight, if not 0, is how many requests the API server takes at once.
	bare     bool
	inFlight int
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	stop, err := profile(o.profile)
	if err != nil {
		return err
	}
	defer stop()
	for _, n := range o.services {
		for _, form := range o.forms {
			if err := measure(ctx, o, n, form); err != nil {
				return err
			}
		}
	}
	if o.slices == 0 {
		return nil
	}
	return plan(ctx, o, o.services[len(o.services)-1])
}

func parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("bench-servicecidr", flag.ContinueOnError)
	services := flags.String("services", "5000,10000", "how many Services to move, one measurement each")
	forms := flags.String("forms", "ExternalIPs,LoadBalancer", "bridge forms, one measurement each")
	flags.IntVar(&o.slices, "slices", 50000, "EndpointSlices for the measurement of plan; 0 leaves it out")
	flags.StringVar(&o.replumb, "replumb", "bin/replumb", "the program whose plan is measured")
	flags.StringVar(&o.profile, "cpuprofile", "", "file for a CPU profile of this process")
	flags.IntVar(&o.parallel, "parallel", 32, "requests of the bare client at once: what replumb does at once")
	flags.BoolVar(&o.bare, "bare", true, "measure the bare clients too")
	flags.IntVar(&o.inFlight, "in-flight", 0,
		"requests that the API server takes at once, half of them writes; others it refuses. The bare client then comes last")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	for _, text := range strings.Split(*services, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 2 || n > 16000 {
			return o, fmt.Errorf("-services %s: want numbers from 2 to 16000", *services)
		}
		o.services = append(o.services, n)
	}
	for _, text := range strings.Split(*forms, ",") {
		if text != "" {
			o.forms = append(o.forms, v1alpha1.BridgeForm(text))
		}
	}
	return o, nil
}

func profile(file string) (stop func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}
