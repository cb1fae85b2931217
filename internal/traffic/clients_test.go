package traffic

import (
	"testing"

	"github.com/replumb/replumb/internal/probe"
)

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
