package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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
	// Endpoints are client URLs of members, one of which must answer.
	Endpoints []string
	// TLS for clients; nil for an etcd without. See Files.
	TLS *tls.Config
	// Dial, if set, makes the connections, which carry what is not encrypted.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Timeout is how long one member may take to answer. Default: three seconds.
	Timeout time.Duration
	// Label tells a second etcd from the first one, in steps and errors: "events". Default: none.
	Label string
	// Run names the job that snapshots are taken for: they replace only those of the same.
	Run string
}

func (c *Client) called(text string) string {
	if c.config.Label == "" {
		return text
	}
	return strings.Replace(text, "etcd", c.config.Label+" etcd", 1)
}

func (c *Client) stepID(id string) string {
	if c.config.Label == "" {
		return id
	}
	return strings.Replace(id, "etcd/", "etcd-"+c.config.Label+"/", 1)
}

// changeLimit bounds a change of members. etcd gives up after five seconds and two elections
// (ReqTimeout in go.etcd.io/etcd/server/v3/config).
const changeLimit = 10 * time.Second

// Client looks at the members of an etcd, and changes who is one.
type Client struct {
	config Config
	// whole asks the member that answers first; for a question to one member it would not tell
	// which one answered.
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

// Labelled has no connection, only the step names of a label, for previews.
func Labelled(label string) *Client { return &Client{config: Config{Label: label}} }

func (c *Client) Close() error { return c.whole.Close() }

// KV is linearizable: without a quorum there is no answer.
func (c *Client) KV() clientv3.KV { return c.whole.KV }

// dial does not wait for a connection.
func dial(config Config, endpoints []string, tries uint) (*clientv3.Client, error) {
	// Without a logger, the client writes its retries to stderr; nothing in it is fatal.
	silent, err := logutil.CreateDefaultZapLogger(logutil.ConvertToZapLevel("fatal"))
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{grpc.WithChainUnaryInterceptor(impatient), grpc.WithChainStreamInterceptor(impatientStream)}
	if config.Dial != nil {
		options = append(options, grpc.WithContextDialer(config.Dial))
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: config.TLS, Logger: silent, MaxUnaryRetries: tries,
		// A connection to a vanished machine would last a quarter of an hour.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		DialOptions: options,
	})
}

// impatient fails calls without a connection, and keeps the reason. etcd's client has gRPC wait
// instead (defaultWaitForReady in go.etcd.io/etcd/client/v3/options.go), and ends with a timeout
// alone.
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

// safe leaves out client URLs without TLS: members announce them, and etcd's client would obey.
func (c *Client) safe(urls []string) []string {
	if c.config.TLS == nil {
		return urls
	}
	return slices.DeleteFunc(slices.Clone(urls), func(u string) bool { return !strings.HasPrefix(u, "https://") })
}

// ask calls fn with a connection to one member's own client URLs.
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

// follow directs further questions to healthy members, which may not be those given at first.
func (c *Client) follow(cluster *Membership) {
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
