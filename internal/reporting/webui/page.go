package webui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"

	"github.com/replumb/replumb/internal/reporting/htmlreport"
)

//go:embed assets
var assets embed.FS

func render() (page []byte, policy string, err error) {
	shared, err := htmlreport.Style()
	if err != nil {
		return nil, "", err
	}
	own, err := assets.ReadFile("assets/board.css")
	if err != nil {
		return nil, "", err
	}
	style := append([]byte(shared), own...)
	script, err := assets.ReadFile("assets/board.js")
	if err != nil {
		return nil, "", err
	}
	t, err := template.ParseFS(assets, "assets/board.html")
	if err != nil {
		return nil, "", fmt.Errorf("the page's template: %w", err)
	}
	var body bytes.Buffer
	err = t.Execute(&body, map[string]any{
		"Style": template.CSS(style), "Script": template.JS(script), //nolint:gosec // ours, and embedded
	})
	if err != nil {
		return nil, "", fmt.Errorf("writing the page: %w", err)
	}
	policy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; frame-src 'self'; img-src data:" +
		"; style-src " + hashOf(style) + "; script-src " + hashOf(script)
	return body.Bytes(), policy, nil
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
