package traffic

import (
	"testing"

	"github.com/replumb/replumb/internal/verify/probe"
)

func TestClusterCalls(t *testing.T) {
	rates := Rates{Request: 40, Stream: 20, LookUp: 10}
	calls := CallAPI("shop", "10.96.0.1", rates).AndAsk("10.96.0.10", rates)
	later := CallNewAPI("shop", "172.24.0.1", rates).AndAskNew("172.24.0.10", rates)
	if calls.client() == later.client() || calls.client() == (Calls{}).client() {
		t.Errorf("clients %q and %q are in each other's way", calls.client(), later.client())
	}
	want := map[Via]string{
		ByAPIName: "kubernetes.default.svc:443", ByAPIOldAddress: "10.96.0.1:443", ByAPIKept: "10.96.0.1:443",
		ByAPINewAddress: "172.24.0.1:443", ByOldServer: "10.96.0.10:53", ByNewServer: "172.24.0.10:53",
	}
	for _, c := range []Calls{calls, later} {
		config, sources := c.config("node1")
		config, err := config.Resolve("10.244.0.3")
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range config.Targets {
			v := sources[target.Name].Via
			at := target.Address
			if target.Kind == probe.DNS {
				at = target.Resolver
			}
			if at != want[v] {
				t.Errorf("%s calls %s, want %s", v, at, want[v])
			}
			delete(want, v)
		}
	}
	if len(want) > 0 {
		t.Errorf("nothing calls %v", want)
	}
}

func TestCalls(t *testing.T) {
	cart := []Callee{{Name: "cart", Address: "10.96.0.7"}}
	rates := Rates{Request: 40, Stream: 20, LookUp: 10}
	config, sources := Call("shop", cart, rates).AndKeep(cart, rates).config("node1")
	config, err := config.Resolve("10.244.0.3")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"cart:80", "10.96.0.7:80", "10.96.0.7:9000", "cart.shop.svc.cluster.local."}
	for i, target := range config.Targets {
		if target.Address != want[i] {
			t.Errorf("target %s has address %s, want %s", target.Name, target.Address, want[i])
		}
		if target.Kind != probe.DNS && target.ExpectClientAddress != "10.244.0.3" {
			t.Errorf("target %s does not check the source address", target.Name)
		}
		if from := sources[target.Name]; from.Via != Ways()[i] || from.Node != "node1" || from.Service != "cart" {
			t.Errorf("target %s is known as %+v", target.Name, from)
		}
	}
}
