// Package argocd runs the script that deploy/argocd gives Argo CD, in the interpreter that Argo CD has.
package argocd

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestHealth goes through the Migrations that TestKstatus of the controller writes, with the health that each should have.
func TestHealth(t *testing.T) {
	data, err := os.ReadFile("../../internal/operator/controller/testdata/health.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]struct {
		Health    string         `json:"health"`
		Migration map[string]any `json:"migration"`
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatalf("%d Migrations, %v", len(all), err)
	}
	for name, tt := range all {
		if got := health(t, tt.Migration); got != tt.Health {
			t.Errorf("%s: Argo CD shows %s, want %s", name, got, tt.Health)
		}
	}
}

// health is what Argo CD makes of an object.
func health(t *testing.T, object map[string]any) string {
	t.Helper()
	data, err := os.ReadFile("../../deploy/argocd/argocd-cm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config corev1.ConfigMap
	if err := yaml.UnmarshalStrict(data, &config); err != nil {
		t.Fatal(err)
	}
	l := lua.NewState()
	defer l.Close()
	l.SetGlobal("obj", luaValue(l, object))
	if err := l.DoString(config.Data["resource.customizations.health.replumb.dev_Migration"]); err != nil {
		t.Fatal(err)
	}
	result, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %v", l.Get(-1))
	}
	if message := result.RawGetString("message").String(); strings.TrimSpace(message) == "" || message == "nil" {
		t.Errorf("the script has no message: %v", message)
	}
	return result.RawGetString("status").String()
}

func luaValue(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case map[string]any:
		table := l.NewTable()
		for k, e := range v {
			table.RawSetString(k, luaValue(l, e))
		}
		return table
	case []any:
		table := l.NewTable()
		for _, e := range v {
			table.Append(luaValue(l, e))
		}
		return table
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case float64:
		return lua.LNumber(v)
	}
	return lua.LNil
}
