package controller

import (
	"os"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// argoHealth is what Argo CD makes of an object by the script that deploy/argocd gives it, in the interpreter that it has.
func argoHealth(t *testing.T, object map[string]any) string {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/argocd/argocd-cm.yaml")
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
	health, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %v", l.Get(-1))
	}
	if message := health.RawGetString("message").String(); strings.TrimSpace(message) == "" || message == "nil" {
		t.Errorf("the script has no message: %v", message)
	}
	return health.RawGetString("status").String()
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
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	}
	return lua.LNil
}
