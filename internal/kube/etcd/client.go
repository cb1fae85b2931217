package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/replumb/replumb/internal/engine/fault"
)

// Config says how a cluster's etcd is reached.
type Config struct {
	// Endpoints are client URLs of members. One that answers is enough: the others are learned from it.
	Endpoints []string
	// TLS for clients; nil for an etcd without. See Files.
	TLS *tls.Config
	// Timeout is how long one member may take to answer. Default: three seconds.
	Timeout time.Duration
	// Label tells a second etcd from the first one, in steps and errors: "events". Default: none.
	Label string
	// Run names the job that snapshots are taken for: they replace only those of the same.
	Run string
}

// called is text about the first etcd, of the one that a client is for.
func (c *Client) called(text string) string {
	if c.config.Label == "" {
		return text
	}
	return strings.Replace(text, "etcd", c.config.Label+" etcd", 1)
}

// stepID is the ID of a step, which the first etcd must not share with another.
func (c *Client) stepID(id string) string {
	if c.config.Label == "" {
		return id
	}
	return strings.Replace(id, "etcd/", "etcd-"+c.config.Label+"/", 1)
}

// changeLimit is how long a change of members may take. etcd itself gives up on one after five seconds and two elections
// (ReqTimeout in go.etcd.io/etcd/server/v3/config).
const changeLimit = 10 * time.Second

// Client looks at the members of an etcd, and changes who is one.
type Client struct {
	config Config
	// whole asks the member that answers first. What is about one member is asked of that member, by a connection of its own: a
	// client of all of them would not say who answered.
	whole *clientv3.Client
}

// Open fails if no endpoint answers.
func Open(ctx context.Context, config Config) (*Client, error) {
	if len(config.Endpoints) == 0 {
		return nil, &fault.Hinted{
			Err:  errors.New("no endpoint of etcd is given"),
			Hint: "name client URLs of its members, such as https://10.0.0.1:2379",
		}
	}
	if config.Timeout <= 0 {
		config.Timeout = 3 * time.Second
	}
	whole, err := dial(config, config.Endpoints, 10)
	if err != nil {
		return nil, fmt.Errorf("etcd at %s: %w", strings.Join(config.Endpoints, ", "), err)
	}
	c := &Client{config: config, whole: whole}
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	if _, err := whole.MemberList(ctx, clientv3.WithSerializable()); err != nil {
		hint := connectHint(err)
		err = fmt.Errorf("etcd at %s: %w", strings.Join(config.Endpoints, ", "), brief(err))
		return nil, errors.Join(&fault.Hinted{Err: err, Hint: hint}, c.Close())
	}
	return c, nil
}

// Labelled is a client of nothing, whose steps are called as those of an etcd with a label are: for plans that are only shown.
func Labelled(label string) *Client { return &Client{config: Config{Label: label}} }

// Close ends all connections.
func (c *Client) Close() error { return c.whole.Close() }

// KV is what is stored. Whichever member answers asks the others first: without a quorum there is no answer.
func (c *Client) KV() clientv3.KV { return c.whole.KV }

// dial does not wait for a connection. It tries what is harmless to try again so many times.
func dial(config Config, endpoints []string, tries uint) (*clientv3.Client, error) {
	// Without a logger, the client writes its retries to stderr; nothing in it is fatal.
	silent, err := logutil.CreateDefaultZapLogger(logutil.ConvertToZapLevel("fatal"))
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: config.TLS, Logger: silent, MaxUnaryRetries: tries,
		// A machine that vanished says nothing, and a connection to it would be believed in for a quarter of an hour.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(impatient), grpc.WithChainStreamInterceptor(impatientStream)},
	})
}

// impatient has a call fail when there is no connection, and say why there is none. etcd's client asks gRPC to go on trying
// (defaultWaitForReady in go.etcd.io/etcd/client/v3/options.go), and all that is known in the end is that time is up.
func impatient(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	return invoke(ctx, method, request, reply, conn, append(opts, grpc.WaitForReady(false))...)
}

func impatientStream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return stream(ctx, desc, conn, method, append(opts, grpc.WaitForReady(false))...)
}

// ErrPlain says that a member would be asked without TLS although the etcd has it.
var ErrPlain = errors.New("its client URLs are not https, and without TLS nothing is asked")

// safe are the client URLs of a member that are asked. Members say themselves which they have, and for all but https etcd's client
// leaves TLS away.
func (c *Client) safe(urls []string) []string {
	if c.config.TLS == nil {
		return urls
	}
	return slices.DeleteFunc(slices.Clone(urls), func(u string) bool { return !strings.HasPrefix(u, "https://") })
}

// ask calls a function with a connection to one member, by its own client URLs.
func (c *Client) ask(ctx context.Context, m *Member, limit time.Duration, fn func(context.Context, *clientv3.Client) error) error {
	if len(m.ClientURLs) == 0 {
		return errors.New("it has not started")
	}
	urls := c.safe(m.ClientURLs)
	if len(urls) == 0 {
		return fmt.Errorf("%w: %s", ErrPlain, strings.Join(m.ClientURLs, ", "))
	}
	one, err := dial(c.config, urls, 2)
	if err != nil {
		return err
	}
	defer func() { _ = one.Close() }()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return fn(ctx, one)
}

// follow has further questions go to members that are well, which may be none of those that were given at first.
func (c *Client) follow(cluster *Cluster) {
	var urls []string
	for i := range cluster.Members {
		if m := &cluster.Members[i]; m.Healthy && !m.Learner {
			urls = append(urls, c.safe(m.ClientURLs)...)
		}
	}
	if len(urls) > 0 && !slices.Equal(urls, c.whole.Endpoints()) {
		c.whole.SetEndpoints(urls...)
	}
}
