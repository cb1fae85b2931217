// Package provider makes the provider that a record names.
package provider

import (
	"context"
	"fmt"
	"os"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/network/dnsrecords/route53"
)

// Secrets reads the data of a Secret.
type Secrets func(ctx context.Context, namespace, name string) (map[string][]byte, error)

// Open makes the provider of a valid spec, with keys and credentials. It reads no record.
func Open(ctx context.Context, spec v1alpha1.RecordSpec, client *dnsrecords.Client, secrets Secrets) (dnsrecords.Provider, error) {
	p := spec.Provider
	switch {
	case p.RFC2136 != nil:
		key, err := key(ctx, p.RFC2136, secrets)
		if err != nil {
			return nil, &dnsrecords.Error{
				Record: dnsrecords.Title(spec.Name, spec.Type), Problem: err.Error(), Err: err,
				Hint: "tsig-keygen writes a key; a Secret has its parts under name, algorithm and secret",
			}
		}
		return &dnsrecords.Dynamic{Server: p.RFC2136.Server, Zone: p.RFC2136.Zone, Key: key, Client: client}, nil
	case p.Route53 != nil:
		return route53.Open(ctx, *p.Route53, client)
	}
	return &dnsrecords.Manual{Client: client}, nil
}

// Moves makes the moves of valid specs, each with its provider. One that cannot be opened fails
// once it is asked, so that check can say so beside what else it finds.
func Moves(
	ctx context.Context, specs []v1alpha1.RecordSpec, client *dnsrecords.Client, secrets Secrets, memory dnsrecords.Memory,
) ([]*dnsrecords.RecordMove, error) {
	var all []*dnsrecords.RecordMove
	for _, s := range specs {
		p, err := Open(ctx, s, client, secrets)
		if err != nil {
			p = &dnsrecords.Closed{Err: err}
		}
		m, err := dnsrecords.NewMove(s, p, client, memory)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func key(ctx context.Context, p *v1alpha1.RFC2136Provider, secrets Secrets) (*dnsrecords.TSIGKey, error) {
	switch {
	case p.TSIGSecret != nil:
		at := p.TSIGSecret.Namespace + "/" + p.TSIGSecret.Name
		data, err := secrets(ctx, p.TSIGSecret.Namespace, p.TSIGSecret.Name)
		if err != nil {
			return nil, fmt.Errorf("reading Secret %s: %w", at, err)
		}
		k, err := dnsrecords.KeyOf(data)
		if err != nil {
			return nil, fmt.Errorf("secret %s: %w", at, err)
		}
		return k, nil
	case p.TSIGKeyFile != "":
		text, err := os.ReadFile(p.TSIGKeyFile)
		if err != nil {
			return nil, fmt.Errorf("reading the key: %w", err)
		}
		if info, err := os.Stat(p.TSIGKeyFile); err == nil && info.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("%s can be read by others (mode %#o): chmod 600 it", p.TSIGKeyFile, info.Mode().Perm())
		}
		k, err := dnsrecords.ParseKey(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.TSIGKeyFile, err)
		}
		return k, nil
	}
	return nil, nil
}
