package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// ErrNoFlagz says that the flags are not served. Up to Kubernetes 1.35 the feature gate
// ComponentFlagz is off by default (k8s.io/component-base zpages/features/kube_features.go).
var ErrNoFlagz = errors.New("it does not serve /flagz (on by default from Kubernetes 1.36)")

// ErrFlagzForbidden says that the user lacks get on /flagz, which system:monitoring has.
var ErrFlagzForbidden = errors.New("the user has no right to get the non-resource URL /flagz")

const (
	rangeFlag = "service-cluster-ip-range"
	// defaultRange is DefaultServiceIPCIDR (k8s.io/kubernetes
	// pkg/kubeapiserver/options/options.go).
	defaultRange = "10.0.0.0/24"
	// accept prefers the structured form of 1.35 to text (k8s.io/apiserver
	// pkg/server/flagz/negotiate/negotiation.go).
	accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz, application/json;v=v1alpha1;g=config.k8s.io;as=Flagz, text/plain"
	// maxFlags is how much of an answer is read, in bytes. Real ones have about 10,000.
	maxFlags = 1 << 20
)

func (i *Inspector) ranges(ctx context.Context, address string, leaf *x509.Certificate) ([]netip.Prefix, error) {
	config := rest.CopyConfig(i.config)
	name, err := nameFor(leaf, i.config, address)
	if err != nil {
		return nil, err
	}
	config.ServerName = name
	response, err := get(ctx, config, address, "/flagz", accept)
	if err != nil {
		return nil, err
	}
	defer closeBody(response)
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, ErrNoFlagz
	case http.StatusForbidden, http.StatusUnauthorized:
		return nil, ErrFlagzForbidden
	default:
		return nil, fmt.Errorf("/flagz answered %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxFlags))
	if err != nil {
		return nil, fmt.Errorf("reading /flagz: %w", err)
	}
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil {
		return nil, fmt.Errorf("/flagz answered in an unknown form: %w", err)
	}
	return parseFlagz(kind, body)
}

func parseFlagz(kind string, body []byte) ([]netip.Prefix, error) {
	value, found, err := flagIn(kind, body, rangeFlag)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, fmt.Errorf("/flagz does not tell --%s", rangeFlag)
	case value == "":
		value = defaultRange
	}
	return parseRanges(value)
}

// flagIn finds a flag, without its dashes, in an answer of /flagz.
func flagIn(kind string, body []byte, name string) (value string, found bool, err error) {
	if kind != "application/json" {
		value, found = flagInText(body, name)
		return value, found, nil
	}
	var answer struct {
		Flags map[string]string `json:"flags"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", false, fmt.Errorf("reading /flagz: %w", err)
	}
	value, found = answer.Flags[name]
	return value, found, nil
}

// flagInText reads lines of a name, a separator ":", ": ", "=" or " ", and a value. Servers vary
// the separator on purpose (k8s.io/apiserver pkg/server/flagz/textserializer.go).
func flagInText(body []byte, name string) (string, bool) {
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, maxFlags)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || !strings.ContainsRune(":= ", rune(rest[0])) {
			continue
		}
		return strings.TrimSpace(rest[1:]), true
	}
	return "", false
}

func parseRanges(value string) ([]netip.Prefix, error) {
	var ranges []netip.Prefix
	for text := range strings.SplitSeq(value, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", rangeFlag, err)
		}
		ranges = append(ranges, p.Masked())
	}
	return ranges, nil
}

type lastBody struct {
	io.ReadCloser
	transport http.RoundTripper
}

func (b *lastBody) Close() error {
	err := b.ReadCloser.Close()
	utilnet.CloseIdleConnectionsFor(b.transport)
	return err
}

func closeBody(response *http.Response) {
	_ = response.Body.Close() // all that was wanted was read
}
