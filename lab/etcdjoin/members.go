package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
)

// member is what etcd says of one on its peers' port (api/rafthttp in go.etcd.io/etcd/server, /members). One that has not
// started yet has no name.
type member struct {
	ID       uint64   `json:"id"`
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
}

// joiner is the member to be.
type joiner struct {
	name, url string
	client    *http.Client
}

// ask returns the members as etcd's --initial-cluster wants them, in the words of the first peer that answers.
func (j *joiner) ask(ctx context.Context, peers []string) (string, error) {
	var failed error
	for _, peer := range peers {
		members, err := j.members(ctx, peer)
		if err == nil {
			return j.cluster(members)
		}
		failed = errors.Join(failed, err)
	}
	return "", fmt.Errorf("no member says who the members are: %w", failed)
}

func (j *joiner) members(ctx context.Context, peer string) ([]member, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, peer+"/members", nil)
	if err != nil {
		return nil, err
	}
	response, err := j.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s says %s", peer, response.Status)
	}
	var members []member
	err = json.NewDecoder(response.Body).Decode(&members)
	return members, err
}

// cluster fails unless this one is among the members.
func (j *joiner) cluster(members []member) (string, error) {
	var all []string
	known := false
	for _, m := range members {
		name := cmp.Or(m.Name, fmt.Sprintf("%x", m.ID))
		if slices.Contains(m.PeerURLs, j.url) {
			known, name = true, j.name
		}
		for _, url := range m.PeerURLs {
			all = append(all, name+"="+url)
		}
	}
	if !known {
		return "", fmt.Errorf("%s is not a member yet\nhint: etcdctl member add %s --learner --peer-urls=%s", j.url, j.name, j.url)
	}
	return strings.Join(all, ","), nil
}

func mutualTLS(caFile, certFile, keyFile string) (*http.Transport, error) {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", caFile)
	}
	own, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}}, nil
}
