// Command etcdjoin starts the etcd of a control plane that joins a cluster, as who wrote its unit would: it asks the members
// there are who the members are now, and has etcd begin with those. Whether this one is among them is not its business; as
// long as it is not, there is nothing to start, and it ends with an error. Its supervisor tries again.
//
// An etcd that has data begins with what is in there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// askTimeout is how long one member may take to answer.
const askTimeout = 2 * time.Second

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	var j joiner
	var peers, ca, cert, key string
	flag.StringVar(&j.name, "name", "", "name of this member")
	flag.StringVar(&j.url, "url", "", "where other members reach this one")
	flag.StringVar(&peers, "peers", "", "where to ask for the members, separated by commas")
	flag.StringVar(&ca, "cacert", "", "authority of the members' certificates")
	flag.StringVar(&cert, "cert", "", "certificate of this member")
	flag.StringVar(&key, "key", "", "its key")
	data := flag.String("data-dir", "", "folder of etcd's data")
	flag.Parse()
	argv := flag.Args()
	if len(argv) == 0 {
		return errors.New("no command to start etcd with")
	}
	argv = append(argv, "--data-dir="+*data)
	if _, err := os.Stat(filepath.Join(*data, "member")); err == nil {
		return unix.Exec(argv[0], argv, os.Environ())
	}
	transport, err := mutualTLS(ca, cert, key)
	if err != nil {
		return err
	}
	j.client = &http.Client{Timeout: askTimeout, Transport: transport}
	cluster, err := j.ask(context.Background(), strings.Split(peers, ","))
	if err != nil {
		return err
	}
	argv = append(argv, "--initial-cluster-state=existing", "--initial-cluster="+cluster)
	return unix.Exec(argv[0], argv, os.Environ())
}
