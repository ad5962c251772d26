// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"fmt"
	"strings"
	"testing"
)

const (
	messagesRoute  = "POST /v1/messages"
	countRoute     = "POST /v1/messages/count_tokens"
	chatRoute      = "POST /v1/chat/completions"
	responsesRoute = "POST /v1/responses"
)

func endpoint(t testing.TB, route string) *Endpoint {
	t.Helper()
	all, err := Endpoints()
	if err != nil {
		t.Fatal(err)
	}
	return all[route]
}

// whole makes a request of a field's text; the rest is the least that the protocol demands.
func whole(route, more string) string {
	least := `"model":"m","messages":[{"role":"user","content":"hi"}]`
	if route == responsesRoute {
		least = `"model":"m","input":"hi"`
	}
	for _, name := range []string{"model", "messages", "input"} {
		if strings.HasPrefix(more, `"`+name+`"`) {
			least = map[string]string{"model": `"messages":[]`, "messages": `"model":"m"`, "input": `"model":"m"`}[name]
			if name == "model" && route == responsesRoute {
				least = `"input":"x"`
			}
		}
	}
	if more == "" {
		return "{" + least + "}"
	}
	return "{" + least + "," + more + "}"
}

func block(b string) string { return `"messages":[{"role":"user","content":[` + b + `]}]` }
func item(b string) string  { return `"input":[` + b + `]` }
func part(b string) string {
	return `"input":[{"role":"user","content":[` + b + `]}]`
}

const pixel = "data:image/png;base64,iVBORw0KGgo="

// passing are requests whose every part is the agent's own.
var passing = map[string][]string{
	messagesRoute: {
		``, `"stream":true`, `"metadata":{"user_id":"u"}`, `"metadata":null`, `"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}]`,
		`"messages":[{"role":"user","content":"x"},{"role":"system","content":"y","output_config":{"effort":"low"}}]`, // Claude Code
		block(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}`),
		block(`{"source":{"data":"iVBORw0KGgo=","media_type":"image/png","type":"base64"},"type":"image"}`),
		block(`{"type":"document","source":{"type":"text","media_type":"text/plain","data":"see https://x.test"}}`),
		block(`{"type":"tool_use","id":"t","name":"fetch","input":{"url":"https://x.test","api_base":"x","mcp_servers":[1],"type":"web_search"}}`),
		block(`{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"https://x.test"}],"is_error":false}`),
		block(`{"type":"text","text":"please use web_search and mcp_servers at https://x.test"}`),
		`"tools":[{"name":"web_search","description":"d","input_schema":{"type":"object","properties":{"url":{"type":"string"},"URL":{}}}}]`,
		`"tools":[{"type":"custom","name":"n","input_schema":{}},{"type":"bash_20250124","name":"bash"},{"type":"text_editor_20250728","name":"e"}]`,
		`"mcp_servers":[]`, `"mcp_servers":null`, `"container":null`, `"thinking":{"type":"enabled","budget_tokens":1024}`,
	},
	chatRoute: {
		``, `"store":false`, `"metadata":{}`, `"stream":true,"stream_options":{"include_usage":true}`,
		block(`{"type":"image_url","image_url":{"url":"` + pixel + `"}}`), block(`{"type":"image_url","image_url":"` + pixel + `"}`),
		block(`{"type":"file","file":{"file_data":"data:application/pdf;base64,AAAA","filename":"x"}}`),
		`"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"url\":\"http://x\"}"}}]},{"role":"tool","tool_call_id":"1","content":"http://x"}]`,
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"api_base":{}}}}}]`,
	},
	responsesRoute: {
		``, `"store":false`, `"background":false`, `"previous_response_id":null`, `"include":["reasoning.encrypted_content"]`,
		item(`{"role":"user","content":"x"},{"type":"message","role":"developer","content":[{"type":"input_text","text":"x"}]}`),
		item(`{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"http://x"}`),
		item(`{"type":"reasoning","summary":[],"encrypted_content":"x"}`), part(`{"type":"input_image","image_url":"` + pixel + `"}`),
		`"tools":[{"type":"function","name":"f","parameters":{}},{"type":"custom","name":"apply_patch","format":{"type":"grammar"}},{"type":"local_shell"}]`,
	},
	countRoute: {``, `"tools":[{"name":"n","input_schema":{}}]`},
}

func TestPassing(t *testing.T) {
	for route, all := range passing {
		for _, more := range all {
			body := whole(route, more)
			if _, no := endpoint(t, route).Check([]byte(body), &Grants{}); no != nil {
				t.Errorf("%s %s: %v", route, body, no)
			}
		}
	}
}

// hostedThings are case B4: what the provider or the broker would do or fetch, and the word that grants it.
var hostedThings = map[string]map[string]string{
	messagesRoute: {
		`"mcp_servers":[{"type":"url","url":"https://x.test"}]`: "mcp", `"container":"c1"`: "code_execution",
		block(`{"type":"image","source":{"type":"url","url":"https://x.test"}}`):                                      "remote_url",
		block(`{"source":{"url":"https://x.test","type":"url"},"type":"image"}`):                                      "remote_url",
		block(`{"type":"document","source":{"type":"file","file_id":"f"}}`):                                           "file_id",
		block(`{"type":"document","source":{"\u0074ype":"f\u0069le","file_id":"f"}}`):                                 "file_id",
		block(`{"type":"document","source":{"type":"base64","data":"https://x.test"}}`):                               "remote_url",
		block(`{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"h"}}]}`):                "remote_url",
		block(`{"type":"container_upload","file_id":"f"}`):                                                            "file_id",
		block(`{"type":"mcp_tool_use","id":"x"}`):                                                                     "mcp",
		block(`{"type":"hologram"}`):                                                                                  "hologram",
		`"tools":[{"type":"web_search_20250305","name":"web_search"}]`:                                                "web_search",
		`"tools":[{"name":"web_search","type":"web_search_20250305"}]`:                                                "web_search_20250305",
		`"tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]`:                                                  "web_fetch",
		`"tools":[{"type":"code_execution_20250522","name":"x"}]`:                                                     "code_execution",
		`"tools":[{"type":"computer_20250124","name":"x"}]`:                                                           "computer",
		`"tools":[{"type":"mcp_toolset","mcp_server_name":"x"}]`:                                                      "mcp_toolset",
		`"tools":[{"name":"x","input_schema":{}},{"type":"unheard_of_20991231"}]`:                                     "unheard_of",
		`"system":[{"type":"document","source":{"type":"url","url":"https://x.test"}}]`:                               "remote_url",
		block(`{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"url"}}]}}`): "remote_url",
	},
	countRoute: {`"mcp_servers":[{}]`: "mcp", `"tools":[{"type":"web_search_20250305"}]`: "web_search"},
	chatRoute: {
		`"web_search_options":{"x":1}`: "web_search", `"store":true`: "stored_response", `"tools":[{"type":"web_search"}]`: "web_search",
		`"tools":[{"type":"mcp","server_url":"litellm_proxy"}]`:                            "mcp",
		block(`{"type":"image_url","image_url":{"url":"https://x.test/a.png"}}`):           "remote_url",
		block(`{"type":"image_url","image_url":{"url":"\u0068ttps://x.test/a.png"}}`):      "",
		block(`{"type":"image_url","image_url":"http://169.254.169.254/"}`):                "remote_url",
		block(`{"type":"image_url","image_url":{"url":" data:image/png;base64,AAAA"}}`):    "remote_url",
		block(`{"type":"image_url","image_url":{"url":"DATA:image/png;base64,AAAA"}}`):     "remote_url",
		block(`{"type":"image_url","image_url":{"url":"data:image/png;base64,http://x"}}`): "remote_url",
		block(`{"type":"image_url","image_url":{"url":"gs://bucket/x"}}`):                  "remote_url",
		block(`{"type":"file","file":{"file_id":"f"}}`):                                    "file_id",
		block(`{"type":"file","file":{"file_data":"https://x.test"}}`):                     "remote_url",
		block(`{"type":"video_url","video_url":{"url":"https://x.test"}}`):                 "video_url",
		block(`{"type":"document","source":{"type":"url","url":"https://x.test"}}`):        "document",
	},
	responsesRoute: {
		`"previous_response_id":"r"`: "stored_response", `"background":true`: "background", `"conversation":"c"`: "stored_response", `"store":true`: "stored_response",
		`"prompt":{"id":"p"}`: "prompt", item(`{"type":"item_reference","id":"i"}`): "stored_response", item(`{"id":"i","type":"item_reference"}`): "stored_response",
		part(`{"type":"input_image","image_url":"https://x.test"}`): "remote_url", part(`{"type":"input_image","file_id":"f"}`): "file_id",
		part(`{"type":"input_file","file_url":"https://x.test"}`): "remote_url", part(`{"type":"input_file","file_id":"f"}`): "file_id",
		`"tools":[{"type":"web_search"}]`: "web_search", `"tools":[{"type":"web_search_preview_2025_03_11"}]`: "web_search_preview", `"tools":[{"type":"file_search"}]`: "file_search",
		`"tools":[{"type":"code_interpreter","container":{"type":"auto"}}]`: "code_interpreter", `"tools":[{"type":"image_generation"}]`: "image_generation",
		`"tools":[{"type":"mcp","server_label":"x","server_url":"https://x.test"}]`: "mcp", `"tools":[{"type":"computer_use_preview"}]`: "computer_use_preview",
		`"tools":[{"type":"shell","environment":{"type":"container_auto"}}]`: "shell", item(`{"type":"mcp_approval_response","approve":true}`): "mcp",
		item(`{"type":"function_call_output","call_id":"1","output":[{"type":"input_image","image_url":"https://x.test"}]}`):             "remote_url",
		item(`{"type":"additional_tools","role":"developer","tools":[{"type":"namespace","name":"n","tools":[{"type":"web_search"}]}]}`): "web_search",
		`"tools":[{"type":"namespace","name":"n","tools":[{"type":"mcp"}]}]`:                                                             "mcp",
	},
}

// TestHosted is case B4: refused by default, with the word that grants it, and let through by that word.
func TestHosted(t *testing.T) {
	for route, all := range hostedThings {
		for more, word := range all {
			body := []byte(whole(route, more))
			_, no := endpoint(t, route).Check(body, &Grants{Hosted: []string{"else"}})
			if no == nil {
				t.Errorf("B4: %s %s passes", route, body)
				continue
			}
			if word == "" {
				continue
			}
			if no.Reason != DeniedHosted || no.Key != "llm.hosted_tools" || !strings.Contains(no.Text, `"`+undated(word)+`"`) {
				t.Errorf("%s %s: %+v", route, body, no)
			}
			if _, no := endpoint(t, route).Check(body, &Grants{Hosted: []string{word}}); no != nil {
				t.Errorf("%s %s with %s granted: %v", route, body, word, no)
			}
		}
	}
}

// control are parameters by which LiteLLM (1.108) takes orders from a request; a test of the names, not a list that
// anything is checked against.
var control = strings.Fields(`api_key api_base base_url api_version custom_llm_provider extra_headers headers extra_body extra_query mock_response mock_timeout
	mock_tool_calls fallbacks context_window_fallback_dict content_policy_fallbacks litellm_metadata litellm_params litellm_credential_name litellm_call_id
	litellm_trace_id litellm_session_id litellm_logging_obj proxy_server_request model_info model_list model_config user_config guardrails tags cache caching
	num_retries max_retries timeout request_timeout stream_timeout force_timeout no-log no_log logger_fn verbose prompt_id prompt_variables prompt_label
	prompt_version organization deployment_id region_name aws_access_key_id aws_secret_access_key aws_region_name aws_bedrock_runtime_endpoint vertex_project
	vertex_location vertex_credentials azure_ad_token tenant_id client_id client_secret allowed_openai_params drop_params additional_drop_params
	disable_global_guardrails secret_fields shared_session use_litellm_proxy langfuse_host langfuse_secret_key langsmith_base_url gcs_bucket_name
	input_cost_per_token output_cost_per_token hf_model_name custom_prompt_dict roles initial_prompt_value enable_prompt_caching allowed_model_region
	configurable_clientside_auth_params ssl_verify provider_specific_header specific_deployment client search_tool_name policies file_ids attachments
	assistant_id thread_id vector_store_ids safe_mode policy_version use_in_pass_through anthropic_issuer_url aws_sts_endpoint websearch_options`)

// TestControl: no parameter that steers LiteLLM passes, on any route and in any spelling; nor does an unknown one.
func TestControl(t *testing.T) {
	for route := range passing {
		names := append([]string{"x", "", "Model", "MODEL", "model ", "mod\\u0045l", "Stream", "\u212aey", "messages\\u0000"}, control...)
		for _, name := range names {
			body := whole(route, fmt.Sprintf(`"%s":"x"`, name))
			_, no := endpoint(t, route).Check([]byte(body), &Grants{Hosted: []string{name, "mcp"}})
			if no == nil || no.Reason != DeniedParameter {
				t.Errorf("%s %s: %+v", route, body, no)
			}
		}
	}
	for route, more := range map[string]string{messagesRoute: `"metadata":{"user_id":"x","tags":["y"]}`, chatRoute: `"metadata":{"tags":["x"]}`, responsesRoute: `"metadata":{"a":"b"}`} {
		if _, no := endpoint(t, route).Check([]byte(whole(route, more)), &Grants{}); no == nil || no.Reason != DeniedParameter {
			t.Errorf("%s %s: %+v", route, more, no)
		}
	}
}

// TestRefused: reason and path of what is wrong.
func TestRefused(t *testing.T) {
	for more, want := range map[string]string{
		`"messages":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"text","text":1}]}]`: "denied-shape messages[1].content[0].text: here belongs a string",
		`"messages":[null]`: "denied-shape messages[0]: here belongs something else than null", `"messages":null`: "denied-shape messages: the field is missing, or null",
		`"messages":[{"role":"user"}]`: "denied-shape messages[0].content: the field is missing, or null", `"messages":"x"`: "denied-shape messages: here belongs a list",
		`"messages":[{"role":"root","content":"x"}]`: "denied-shape messages[0].role: must be one of user, assistant, system", `"messages":[[]]`: "denied-shape messages[0]: here belongs an object",
		`"messages":[{"role":"user","content":[{"text":"x"}]}]`: "denied-shape messages[0].content[0].type: the field is missing",
		`"messages":[{"role":"user","content":[{"type":7}]}]`:   "denied-shape messages[0].content[0].type: here belongs a string",
		`"stream":"true"`: "denied-shape stream: here belongs true or false", `"max_tokens":"9"`: "denied-shape max_tokens: here belongs a number", `"stream":tru`: "denied-json stream: not valid JSON",
		`"max_tokens":1e999`: "denied-json max_tokens: " + errNumber.Error(), `"max_tokens":1,"max_tokens":2`: "denied-json max_tokens: " + errDuplicate.Error(),
		`"max_tokens":null,"max_tokens":2`:                    "denied-json max_tokens: " + errDuplicate.Error(),
		`"temperature":1,"temper\u0061ture":2`:                "denied-json temperature: " + errDuplicate.Error(),
		block(`{"type":"text","type":"image"}`):               "denied-json messages[0].content[0].type: " + errDuplicate.Error(),
		block(`{"type":"text","text":"x","url":"h"}`):         "denied-parameter messages[0].content[0].url: is not a field that may stand in a part of a message",
		block(`{"type":"text","TEXT":"x"}`):                   "denied-parameter messages[0].content[0].TEXT: is text for some readers and not for others",
		`"tools":[{"name":"x","input_schema":{"a":1,"a":2}}]`: "denied-json tools[0].input_schema: " + errDuplicate.Error(),
		`"service_tier":"` + strings.Repeat("x", 600) + `"`:   "denied-shape service_tier: too long: at most 512 bytes",
	} {
		_, no := endpoint(t, messagesRoute).Check([]byte(whole(messagesRoute, more)), &Grants{})
		if no == nil || no.Reason+" "+no.Error() != want {
			t.Errorf("%s:\n  %+v\n  want %s", more, no, want)
		}
	}
	for body, want := range map[string]string{`[]`: DeniedShape, `"x"`: DeniedShape, ``: DeniedJSON, `null`: DeniedShape, `{}`: DeniedShape, `{"model":"m","messages":[]}{}`: DeniedJSON, "{\"model\":\"\xff\"}": DeniedJSON} {
		if _, no := endpoint(t, messagesRoute).Check([]byte(body), &Grants{}); no == nil || no.Reason != want {
			t.Errorf("%q: %+v, want %s", body, no, want)
		}
	}
}

// TestModels is case B3: names that are declared, and names that are none.
func TestModels(t *testing.T) {
	check := func(model string, models ...string) *Denial {
		_, no := endpoint(t, chatRoute).Check([]byte(whole(chatRoute, `"model":"`+model+`"`)), &Grants{Models: models})
		return no
	}
	for _, good := range []string{"gpt-5", "openai/gpt-5", "claude-opus-4-5[1m]", "us.anthropic.claude-v1:0", "a@b", "ft:x+y~z_1"} {
		if no := check(good); no != nil {
			t.Errorf("%s: %v", good, no)
		}
	}
	for _, bad := range []string{"", " ", "a b", `a\nb`, `a\r\nX-Key: 1`, "*", "gpt-*", "a,b", `a\u0000`, "é", "a?b", "a#b", "a\u202eb", strings.Repeat("m", 201), "%0a", "${x}", "{a}", "a;b", `\"`} {
		if no := check(bad); no == nil || no.Reason != DeniedModel || no.Key != "" {
			t.Errorf("%q: %+v", bad, no)
		}
	}
	for name, pass := range map[string]bool{"gpt-5": true, "GPT-5": false, "gpt-50": false, "gpt": false, "claude-x-1": true, "claude-1": false, "a/claude-x-1": false, "claude-x-": true} {
		if no := check(name, "gpt-5", "claude-*-*"); (no == nil) != pass || no != nil && no.Key != "llm.models" {
			t.Errorf("%s: %+v", name, no)
		}
	}
}

// TestLate: what decides may stand anywhere, but nobody can make the walk read the same bytes again and again.
func TestLate(t *testing.T) {
	inner := `{"text":"` + strings.Repeat("x", 1000) + `","type":"text"}`
	for range 30 {
		inner = `{"tool_use_id":"t","content":[` + inner + `],"type":"tool_result"}`
	}
	_, no := endpoint(t, messagesRoute).Check([]byte(whole(messagesRoute, block(inner))), &Grants{})
	if no == nil || !strings.Contains(no.Text, "stands behind too much") {
		t.Errorf("%v", no)
	}
}

// FuzzCheck: whatever passes on any route, encoding/json reads, and reads alike.
func FuzzCheck(f *testing.F) {
	for route, all := range passing {
		for _, more := range all {
			f.Add([]byte(whole(route, more)))
		}
	}
	for route, all := range hostedThings {
		for more := range all {
			f.Add([]byte(whole(route, more)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for route := range passing {
			if _, no := endpoint(t, route).Check(b, &Grants{}); no != nil {
				continue
			}
			if err := sameReading(b); err != nil {
				t.Errorf("%s %q passes, but %v", route, b, err)
			}
		}
	})
}

// conversation is a request of the size and kind that a coding agent sends.
func conversation(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"claude-sonnet-4-5","max_tokens":32000,"stream":true,"messages":[`)
	for n := 0; b.Len() < size; n++ {
		if n > 0 {
			b.WriteByte(',')
		}
		text := strings.Repeat(`func main() {\n\tfmt.Println(\"hello, world\") // some code that a tool has read\n}\n`, 40)
		fmt.Fprintf(&b, `{"role":"assistant","content":[{"type":"text","text":"I will look."},{"type":"tool_use","id":"t%d","name":"Read","input":{"path":"/workspace/a/%d.go","limit":100}}]},`, n, n)
		fmt.Fprintf(&b, `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":[{"type":"text","text":"%s"}]}]}`, n, text)
	}
	b.WriteString(`],"tools":[{"name":"Read","description":"d","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}}]}`)
	return []byte(b.String())
}

// dense are bodies of about a MB in which as much as possible has to be looked at for each byte.
func dense() map[string][]byte {
	input := func(text string) []byte {
		return []byte(whole(messagesRoute, block(`{"type":"tool_use","id":"1","name":"x","input":{"a":[`+text+`0]}}`)))
	}
	keys := func(n int) string { return manyKeys(n) + "," }
	return map[string][]byte{
		"small":    input(strings.Repeat(`{"k":1,"l":[true,null]},`, 43000)),
		"numbers":  input(strings.Repeat(`1,`, 500000)),
		"floats":   input(strings.Repeat(`1.5e2,`, 170000)),
		"large":    input(strings.Repeat(`1234567890123456789,`, 50000)),
		"lists":    input(strings.Repeat(`[],`, 330000)),
		"objects":  input(strings.Repeat(`{"":0},`, 140000)),
		"strings":  input(strings.Repeat(`"",`, 330000)),
		"escapes":  input(`"` + strings.Repeat(`\n`, 500000) + `",`),
		"unicode":  input(`"` + strings.Repeat(`\ud83d\ude00`, 83000) + `",`),
		"keys":     input(strings.Repeat(keys(9000), 11)),
		"few keys": input(strings.Repeat(keys(13), 9000)),
		"spaces":   input(strings.Repeat(" ", 1<<20)),
		"blocks":   []byte(whole(messagesRoute, block(strings.Repeat(`{"type":"text","text":""},`, 40000)+`{"type":"text","text":""}`))),
		"late":     []byte(whole(messagesRoute, block(strings.Repeat(`{"text":"","type":"text"},`, 40000)+`{"type":"text","text":""}`))),
		"image":    []byte(whole(messagesRoute, block(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"`+strings.Repeat("iVBORw0KGgo", 95000)+`"}}`))),
		"foreign":  []byte(whole(messagesRoute, block(`{"type":"text","text":"`+strings.Repeat("日本語のテキスト、", 38000)+`"}`))),
		"agent":    conversation(1 << 20),
	}
}

func BenchmarkCheck(b *testing.B) {
	for name, body := range dense() {
		b.Run(name, func(b *testing.B) {
			e := endpoint(b, messagesRoute)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, no := e.Check(body, &Grants{}); no != nil {
					b.Fatal(no)
				}
			}
		})
	}
}
