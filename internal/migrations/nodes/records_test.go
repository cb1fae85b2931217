package nodes

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
)

// recorded are the steps of a plan that write a record, in their order.
func recorded(p *engine.Plan) (ids []string) {
	for _, s := range p.Steps() {
		if id, ok := strings.CutPrefix(s.ID(), "back/"); strings.HasPrefix(id, "record/") {
			if ok {
				id = "back " + id
			}
			ids = append(ids, id)
		}
	}
	return ids
}

// TestRecordsGoBackWithWhatTheyLeadTo: a rollback takes names back as long as what they led to is
// there, those of the API if no control plane has ended. The others stay, and get their time to
// live where they are: none is said to have been put back by others.
func TestRecordsGoBackWithWhatTheyLeadTo(t *testing.T) {
	const way = "widen settle narrow drain restore"
	for _, tt := range []struct{ name, recorded, www, api string }{
		{"all is there", "", "back " + way, "back " + way},
		{"a worker has ended", "{name: old1, role: worker, ended: true}", "leave", "back " + way},
		{"a control plane has ended", "{name: cp1, role: control-plane, addresses: [10.1.0.11], ended: true}", "leave", "leave"},
	} {
		p, _ := planner(t, map[string][]byte{
			"migration.yaml": []byte(byHand), "cluster.yaml": []byte(oneOfEach),
			"facts.yaml": []byte(`etcd: [{ID: 11, Name: cp1, PeerURLs: ["https://10.1.0.11:2380"], Healthy: true}]` +
				"\nrecorded: [" + tt.recorded + "]\n"),
		})
		var want []string
		for name, stages := range map[string]string{"www": tt.www, "api": tt.api} {
			rest, back := strings.CutPrefix(stages, "back ")
			for stage := range strings.FieldsSeq(rest) {
				id := "record/" + name + ".example.com/A/" + stage
				if back {
					id = "back " + id
				}
				want = append(want, id)
			}
		}
		got := recorded(p.Rollback())
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", tt.name, got, want)
		}
	}
}

// goingOn is byHand with a name of the API that goes on to a load balancer at last.
func goingOn() string {
	return strings.Replace(byHand, "to: [10.2.0.6],", "to: [10.2.0.6], then: {type: CNAME, to: [lb.example.net]},", 1)
}

// TestNamesOfTheAPIGoOn: after the last control plane, as the last change of apply; and finish
// waits for that.
func TestNamesOfTheAPIGoOn(t *testing.T) {
	p, _ := planner(t, map[string][]byte{
		"migration.yaml": []byte(goingOn()), "cluster.yaml": []byte(oneOfEach),
		"facts.yaml": []byte(`etcd: [{ID: 21, Name: cp2, PeerURLs: ["https://10.2.0.11:2380"], Healthy: true}]
recorded: [{name: cp1, role: control-plane, addresses: [10.1.0.11], ended: true, gone: true, successor: {name: cp2, peerURL: "https://10.2.0.11:2380"}}]
`),
	})
	ids := recorded(p.Apply())
	want := []string{"record/api.example.com/A/then", "record/api.example.com/A/forget"}
	if !slices.Equal(ids[len(ids)-2:], want) || slices.Contains(ids, "record/api.example.com/A/narrow") {
		t.Errorf("apply does %q", ids)
	}
	p.Inventory.Nodes = nil
	if early := p.Early(); !strings.Contains(early, "A record api.example.com is not seen to have lb.example.net.") {
		t.Errorf("it may be finished: %q", early)
	}
	p.APIRecords = nil
	if early := p.Early(); early != "" {
		t.Errorf("it may not be finished: %s", early)
	}
}

// TestLastEndsAreAsked: of names that go on it is said whether what they are to have at last
// answers.
func TestLastEndsAreAsked(t *testing.T) {
	for _, problem := range []error{nil, errors.New("it does not answer")} {
		p, _ := planner(t, map[string][]byte{
			"migration.yaml": []byte(goingOn()), "cluster.yaml": []byte(oneOfEach), "facts.yaml": []byte(`{}`),
		})
		var asked []string
		p.APIRecords[0].Answer = func(_ context.Context, values []string) error {
			asked = append(asked, values...)
			return problem
		}
		got := endProblems(t.Context(), append(p.Records, p.APIRecords...))
		if !slices.Equal(asked, []string{"lb.example.net."}) || (problem == nil) != (len(got) == 0) {
			t.Errorf("%v: asked are %v, found is %v", problem, asked, got)
		}
		if names := slices.Collect(maps.Keys(got)); problem != nil && !slices.Equal(names, []string{"A record api.example.com"}) {
			t.Errorf("%v: of %v", problem, names)
		}
	}
}

// TestAnswersAt: an end of a record that changes its type has to answer at one of the API's ports,
// with a certificate for the name.
func TestAnswersAt(t *testing.T) {
	api := httptest.NewUnstartedServer(http.NotFoundHandler())
	api.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	api.StartTLS()
	t.Cleanup(api.Close)
	host, text, err := net.SplitHostPort(api.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	at, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	servers := apiserver.New(&rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	port, closed := uint16(at), uint16(1)
	for _, tt := range []struct {
		name, of string
		ports    []uint16
		again    bool
		problem  string
	}{
		{"it answers", "example.com", []uint16{port}, false, ""},
		{"it answers at one of two ports", "example.com", []uint16{closed, port}, false, ""},
		{"nothing listens", "example.com", []uint16{closed}, true, "does not answer"},
		{"the certificate is for others", "api.example.org", []uint16{closed, port}, false, "not good for api.example.org"},
	} {
		err := answersAt(t.Context(), servers, host, tt.ports, tt.of)
		if tt.problem == "" && err != nil || tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem) ||
			engine.Retryable(err) != tt.again) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
