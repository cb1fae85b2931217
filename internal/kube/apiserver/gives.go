package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/kube/serviceranges"
)

// ErrNoRange says that an API server did not say which range it gives addresses from.
var ErrNoRange = errors.New("it did not name its Service range when it was asked for an address outside of it")

// Gives finds the range of a family where there are no ServiceCIDRs: the API server at address
// (host:port) names it when it refuses the dry run of a Service outside.
func (i *Inspector) Gives(ctx context.Context, address string, family corev1.IPFamily) (r netip.Prefix, err error) {
	if i.recorded != nil {
		return i.recorded.gives(address, family)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	leaf, err := i.certificate(ctx, address)
	if err != nil {
		return r, err
	}
	config := rest.CopyConfig(i.config)
	if config.ServerName, err = nameFor(leaf, i.config, address); err != nil {
		return r, err
	}
	svc := serviceranges.OutOfRange(family)
	svc.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	body, err := json.Marshal(svc)
	if err != nil {
		return r, err
	}
	response, err := post(ctx, config, address, "/api/v1/namespaces/"+svc.Namespace+"/services?dryRun=All", body)
	if err != nil {
		return r, err
	}
	defer closeBody(response)
	text, err := io.ReadAll(io.LimitReader(response.Body, maxFlags))
	if err != nil {
		return r, fmt.Errorf("reading its answer: %w", err)
	}
	status := &metav1.Status{}
	if err := json.Unmarshal(text, status); err != nil {
		return r, fmt.Errorf("reading its answer: %w", err)
	}
	r, known := serviceranges.RangeIn(errors.New(status.Message))
	if !known || response.StatusCode != http.StatusUnprocessableEntity {
		return netip.Prefix{}, fmt.Errorf("%w: %s", ErrNoRange, response.Status)
	}
	return r, nil
}
