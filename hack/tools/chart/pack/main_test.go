package main

import (
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

const chartDir = "../../../../charts/replumb"

// TestPack: what a release is installed from needs no value to be set, and runs the image of its version by its digest.
func TestPack(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	file, err := pack(chartDir, "v1.2.3", digest, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(file, "/replumb-1.2.3.tgz") {
		t.Errorf("packaged as %s", file)
	}
	c, err := loader.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	options := chartutil.ReleaseOptions{Name: "replumb", Namespace: "replumb-system", IsInstall: true}
	values, err := chartutil.ToRenderValues(c, nil, options, chartutil.DefaultCapabilities.Copy())
	if err != nil {
		t.Fatal(err)
	}
	all, err := engine.Engine{Strict: true}.Render(c, values)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`image: "ghcr.io/replumb/replumb:v1.2.3@` + digest + `"`, "app.kubernetes.io/version: v1.2.3"} {
		if !strings.Contains(all["replumb/templates/deployment.yaml"], text) {
			t.Errorf("%q is missing in\n%s", text, all["replumb/templates/deployment.yaml"])
		}
	}
}

// TestNoVersion: a chart is not packaged without one.
func TestNoVersion(t *testing.T) {
	for _, version := range []string{"", "main"} {
		if file, err := pack(chartDir, version, "", t.TempDir()); err == nil {
			t.Errorf("%q: %s", version, file)
		}
	}
}
