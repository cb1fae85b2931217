package agentset

import (
	"strings"
	"testing"
)

func TestServersAreKept(t *testing.T) {
	have := &applyStep{set: &Set{}}
	have.build = have.set.hostSet
	for _, tt := range []struct{ known, now, want string }{
		{"a:1,b:1", "a:1,b:1", "a:1,b:1"},
		{"a:1,b:1,c:1", "a:1,c:1", "a:1,b:1,c:1"}, // one is away
		{"a:1,b:1", "a:1,c:1", "a:1,c:1"},
		{"a:1", "a:1,b:1", "a:1,b:1"},
	} {
		objects, err := have.objects(strings.Split(tt.known, ","))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(servers(strings.Split(tt.now, ","), objects[0]), ","); got != tt.want {
			t.Errorf("known %s, now %s: got %s, want %s", tt.known, tt.now, got, tt.want)
		}
	}
}
