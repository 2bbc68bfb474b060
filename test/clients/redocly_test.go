package clients

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestDocumentUnderRedocly asks a linter of OpenAPI documents for its recommended rules on the document that is served.
func TestDocumentUnderRedocly(t *testing.T) {
	dir, err := filepath.Abs(filepath.Join("..", "..", ".bin", "clients"))
	if err != nil {
		t.Fatal(err)
	}
	_, _, document := curl(t, suite.info.API+"/v2/openapi.json")
	path := filepath.Join(t.TempDir(), "openapi.json")
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "node"), filepath.Join(dir, "node_modules", "@redocly", "cli", "bin", "cli.js"),
		"lint", "--extends", "recommended", "--max-problems", "20", "--format", "json", path)
	cmd.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true")
	cmd.Dir = t.TempDir() // where there is no configuration
	out, err := cmd.Output()
	var found struct {
		Totals *struct{ Errors, Warnings int }
	}
	if jerr := json.Unmarshal(out, &found); jerr != nil || err != nil || found.Totals == nil || *found.Totals != struct{ Errors, Warnings int }{} {
		t.Errorf("%v, %v\n%s", err, jerr, out)
	}
}
