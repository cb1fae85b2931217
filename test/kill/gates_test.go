//go:build long

package kill

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// foreign is how an address is written in endpoints, where none of this machine is allowed. The front writes it as it is.
func (s *site) foreign(text string) string { return strings.Replace(text, "127.", "101.", 1) }

// open has the API server of a machine serve: a way leads to the one that there is, and it is an endpoint.
func (s *site) open(m *machine) {
	gate, err := (&net.ListenConfig{}).Listen(s.Context(), "tcp", net.JoinHostPort(m.at.String(), strconv.Itoa(apiPort)))
	must(s, err)
	m.gate = gate
	to, err := url.Parse(s.api.Config.Host)
	must(s, err)
	go func() {
		for {
			conn, err := gate.Accept()
			if err != nil {
				return // it was closed
			}
			go lead(conn, to.Host)
		}
	}()
	must(s, client.IgnoreAlreadyExists(s.api.Create(context.WithoutCancel(s.Context()), s.endpoint(m))))
}

// lead passes on what a connection carries.
func lead(conn net.Conn, to string) {
	defer func() { _ = conn.Close() }()
	server, err := (&net.Dialer{Timeout: answerWithin}).Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() { _, _ = io.Copy(server, conn) }()
	_, _ = io.Copy(conn, server)
}

// shut ends the API server of a machine.
func (s *site) shut(m *machine) {
	if m.gate != nil {
		_ = m.gate.Close()
		m.gate = nil
	}
	if err := s.api.Delete(context.WithoutCancel(s.Context()), s.endpoint(m)); client.IgnoreNotFound(err) != nil {
		s.Error(err)
	}
}

func (s *site) endpoint(m *machine) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault,
			Name:      "api-" + m.name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{s.foreign(m.at.String())}}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](apiPort)}},
	}
}

// serveFront opens the address by which commands reach the API server: it shows the same certificate, passes requests on, and writes
// endpoints as the machines have them.
func (s *site) serveFront() {
	own := fmt.Sprintf("%d.%d.%d.", s.subnet[0], s.subnet[1], s.subnet[2])
	front, err := front(s.api, func(r *http.Request, body []byte) []byte {
		if strings.HasSuffix(r.URL.Path, "/endpointslices") {
			return bytes.ReplaceAll(body, []byte(s.foreign(own)), []byte(own))
		}
		return body
	})
	must(s, err)
	s.Cleanup(front.Close)
	config, err := clientcmd.LoadFromFile(s.api.Kubeconfig)
	must(s, err)
	for _, c := range config.Clusters {
		c.Server = front.URL
	}
	s.target = target(filepath.Join(s.dir, "kubeconfig"))
	must(s, clientcmd.WriteToFile(*config, string(s.target)))
}
