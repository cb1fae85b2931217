package rollout

import (
	"fmt"
	"testing"

	"github.com/replumb/replumb/internal/engine"
)

func TestPreview(t *testing.T) {
	w := Workload{Kind: KindDeployment, Namespace: "shop", Name: "web"}
	p := pod("bare", 0)
	for _, tt := range []struct {
		step engine.Step
		want string
		more int
	}{
		{Deps{}.Restart(w, Changes{}), "patch Deployment shop/web", 1}, // and what comes if it is taken back
		{Deps{}.Evict(&p, Changes{}), "create Eviction shop/bare", 0},
	} {
		changes, err := engine.Preview(tt.step)
		if err != nil || len(changes) != 1+tt.more || changes[0].Verb+" "+changes[0].Object != tt.want {
			t.Errorf("%v, %v; want %s", changes, err, tt.want)
		}
		again, err := engine.Preview(tt.step)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(changes) {
			t.Errorf("the preview changes: %v, %v", changes, again)
		}
	}
}
