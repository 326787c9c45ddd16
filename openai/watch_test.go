package openai

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestOtherModels: a member that names a model is found wherever a provider reads one.
func TestOtherModels(t *testing.T) {
	t.Parallel()
	const image = `{"type":"image_generation","model":"gpt-image-2"}`
	for member, want := range map[string]string{
		`"moderation":{"model":"omni-moderation-latest"}`:                               "*model",
		`"moderation":{"policy":{"mo\u0064el":"x"}}`:                                    "*model",
		`"x":[{"y":[{"Advisor-Model":"x"}]}]`:                                           "*model",
		`"analysis_models":["a"]`:                                                       "*model",
		`"embeddingModel":"x"`:                                                          "*model",
		`"model_id":"x"`:                                                                "*model",
		`"options":{"modelName":"x"}`:                                                   "*model",
		`"stream_options":{"model":"x"}`:                                                "*model",
		`"x":{"models":[null,"a"]}`:                                                     "*model",
		`"tools":[` + image + `]`:                                                       "tools.model",
		`"tools":[{"type":"namespace","tools":[` + image + `]}]`:                        "tools.model",
		`"tools":[{"type":"image_generation","svg":{"model":"gpt-6"}}]`:                 "tools.model",
		`"tools":[{"type":"openrouter:fusion","parameters":{"analysis_models":["a"]}}]`: "tools.model",
		`"tools":[{"type":"openrouter:advisor"}]`:                                       "tools.model",
		`"tools":[{"type":"function"},{"type":"OpenRouter\u003aFusion"}]`:               "tools.model",
		`"tools":[{"type":"openrouter:subagent","type":"function"}]`:                    "tools.model",
		`"tools":[{"type":"advisor_20260301","name":"advisor"}]`:                        "tools.model",
		`"tools":` + image:                                                              "tools.model",
		`"input":[{"role":"user","content":"hi"},{"type":"additional_tools","role":"developer","tools":[` + image + `]}]`:                                                 "tools.model",
		`"input":[{"type":"tool_search_output","t\u006fols":[{"type":"namespace","tools":[` + image + `]}]}]`:                                                             "tools.model",
		`"messages":[{"role":"system","content":[{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"advisor_20260301","model":"claude"}}}]}]`: "tools.model",
		`"messages":[{"role":"system","tools":[{"type":"advisor","model":"claude"}]}]`:                                                                                    "tools.model",
	} {
		e, err := ParseEnvelope([]byte(`{"model":"m",` + member + `}`))
		if err != nil {
			t.Errorf("%s: %v", member, err)
			continue
		}
		refused, _ := errors.AsType[*Error](e.CheckSteering(OpChatCompletions, nil))
		if refused == nil || refused.Param != want {
			t.Errorf("%s: %v, want %s", member, refused, want)
		} else if err := e.CheckSteering(OpChatCompletions, []string{want}); err != nil {
			t.Errorf("%s: refused although allowed: %v", member, err)
		}
	}
}

// TestModelsInContent: what clients say of models, in whatever shape, names none.
func TestModelsInContent(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","properties":{"model":{"type":"string","default":"x"},"models":{"type":"array"},"car":{"$ref":"#/$defs/Car"}},` +
		`"required":["model"],"default":{"model":"x"},"examples":[{"model":"x"}],"$defs":{"Model":{"properties":{"model_name":{"const":"x"}},` +
		`"discriminator":{"propertyName":"model","mapping":{"model":"#/$defs/Model"}}}}}`
	for _, member := range []string{
		`"messages":[{"role":"assistant","model":"gpt","tool_calls":[{"function":{"name":"f","arguments":{"model":"x","tools":[{"model":"x"}]}}}]}]`,
		`"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{"model":"x","tools":[{"type":"a","model":"x"}],"content":[{"tools":[{"model":"x"}]}]}}]}]`,
		`"tools":[{"type":"openrouter:web_search"},{"type":"image_generation"},{"type":"function","function":{"name":"openrouter:advisor"}}]`,
		`"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{"__proto__":{"model":"x"}}}]}]`,
		`"messages":[{"role":"assistant","content":[{"type":"fallback","from":{"model":"a"},"to":{"model":"b"}}]}]`,
		`"input":[{"type":"image_generation_call","result":"x","svg_usage":{"model":"gpt-6"}},{"type":"mcp_list_tools","tools":[{"name":"f","input_schema":` + schema + `}]}]`,
		`"tools":[{"type":"function","name":"f","parameters":` + schema + `},{"name":"f","input_schema":` + schema + `,"input_examples":[{"model":"x"}]}]`,
		`"tools":[{"type":"function","function":{"name":"model","parameters":` + schema + `}}],"tool_choice":{"type":"function","function":{"name":"model"}}`,
		`"response_format":{"type":"json_schema","json_schema":{"name":"model","schema":` + schema + `}},"format":` + schema + `,"guided_json":` + schema,
		`"text":{"format":{"type":"json_schema","name":"x","schema":` + schema + `}},"structured_outputs":{"json":` + schema + `}`,
		`"metadata":{"model":"x","models":"y"},"documents":[{"model":"x"}],"query":{"model":"x"},"prediction":{"model":"x"}`,
		`"chat_template_kwargs":{"model_identity":"You are a model."},"moderation":{"model":"","policy":{}},"x":{"model":null,"models":[],"y_model":3,"z_model":true}`,
		`"prompt":{"id":"x","variables":{"model":"x"}},"reasoning":{"effort":"low"},"modelx":"y","remodeling":"z"`,
	} {
		e, err := ParseEnvelope([]byte(`{"model":"m",` + member + `}`))
		if err == nil {
			err = e.CheckSteering(OpChatCompletions, nil)
		}
		if err != nil {
			t.Errorf("%s: %v", member, err)
		}
	}
}

// TestReadsMore: tools of the provider's, and members that are not known to be harmless, may have it read what is not here.
func TestReadsMore(t *testing.T) {
	t.Parallel()
	for member, want := range map[string]bool{
		`"tools":[{"type":"function","function":{"name":"f"}},{"type":"custom","name":"f"},{"name":"f","input_schema":{}}]`: false,
		`"temperature":1,"top_p":1,"stop":null,"response_format":{"type":"text"},"max_tokens":3,"search_parameters":null`:   false,
		`"enable_search":false,"thinking":{"type":"enabled","budget_tokens":1024}`:                                          false,
		`"messages":[{"role":"user","content":"tools"}]`:                                                                    false,
		`"search_parameters":{"mode":"auto"}`:                                                                               true,
		`"enable_search":true`:                                                                                              true,
		`"web_search_options":{}`:                                                                                           true,
		`"mcp_servers":[{"type":"url"}]`:                                                                                    true,
		`"container":"c"`:                                                                                                   true,
		`"tools":[{"type":"code_interpreter"}]`:                                                                             true,
		`"tools":[{"type":"code_execution_20250825","name":"code_execution"}]`:                                              true,
		`"tools":[{"type":"builtin_function","function":{"name":"$web_search"}}]`:                                           true,
		`"tools":[{"google_search":{}}]`:                                                                                    true,
		`"input":[{"type":"additional_tools","tools":[{"type":"file_search"}]}]`:                                            true,
		`"messages":[{"role":"system","content":[{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"web_fetch_1"}}}]}]`: true,
	} {
		e, err := ParseEnvelope([]byte(`{"model":"m",` + member + `}`))
		if err != nil || e.ReadsMore() != want {
			t.Errorf("%s: %v %v", member, e.ReadsMore(), err)
		}
	}
}

// TestWatchOfDepth: what is watched is bounded as all else is, and costs one pass however deep it nests.
func TestWatchOfDepth(t *testing.T) {
	for _, member := range []string{`"x":%s`, `"tools":%s`, `"messages":[{"content":[{"tools":%s}]}]`, `"options":{"x":%s}`} {
		for depth, ok := range map[int]bool{50: true, 64: false} {
			nested := strings.Repeat(`[{"a":`, depth/2) + `1` + strings.Repeat(`}]`, depth/2)
			if _, err := ParseEnvelope(fmt.Appendf(nil, `{"model":"m",`+member+`}`, nested)); (err == nil) != ok {
				t.Errorf("%s, %d deep: %v", member, depth, err)
			}
		}
	}
	body := []byte(`{"model":"m","moderation":` + strings.Repeat(`[`, 60) + `{"model":"x"}` + strings.Repeat(`]`, 60) + `,"tools":[{"type":"function","function":{"parameters":{"properties":{"a":{}}}}}]}`)
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseEnvelope(body) }); n > 4 {
		t.Errorf("%v allocations", n)
	}
}
