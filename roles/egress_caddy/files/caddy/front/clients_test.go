// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRecordedClients: what real clients sent in conversations of several steps with tools (own recordings, texts cut
// short) passes, and no beta of theirs is taken away. Recorded: Claude Code 2.1.197; Codex 0.171.0 with
// web_search = "disabled", with its default model too; the SDKs anthropic 2.14.0 and openai 3.57.0; langgraph 1.2.24 with langchain-openai 1.7.4;
// smolagents 1.26.0; crewai 1.15.30; hermes-agent 0.19.0
// (Chat Completions streamed and not, Responses, Messages).
func TestRecordedClients(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.json")
	if len(files) < 8 {
		t.Fatalf("recordings are missing: %v", files)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rows []struct {
			Line    string
			Headers map[string]string
			Body    json.RawMessage
		}
		if err := json.Unmarshal(raw, &rows); err != nil || len(rows) == 0 {
			t.Fatalf("%s: %v", file, err)
		}
		for n, row := range rows {
			path, query, _ := strings.Cut(row.Line, "?")
			e := endpoint(t, path)
			if e == nil || query != "" && query != e.Queries[0] {
				t.Errorf("%s %d: %s", file, n, row.Line)
				continue
			}
			if e.Body != "" {
				if _, no := e.Check(row.Body, &Grants{}); no != nil {
					t.Errorf("%s %d: %s: %v", file, n, row.Line, no)
				}
			}
			if betas := row.Headers["anthropic-beta"]; betas != (&Grants{}).Betas(betas) {
				t.Errorf("%s %d: %s is left of %s", file, n, (&Grants{}).Betas(betas), betas)
			}
		}
	}
}

func TestBetas(t *testing.T) {
	const all = "effort-2025-11-24, mcp-client-2025-04-04,unheard-of-2099-01-01,,files-api-2025-04-14"
	if got := (&Grants{}).Betas(all); got != "effort-2025-11-24" {
		t.Error(got)
	}
	if got := (&Grants{Hosted: []string{"mcp"}}).Betas(all); got != "effort-2025-11-24,mcp-client-2025-04-04" {
		t.Error(got)
	}
}
