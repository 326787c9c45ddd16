package openai

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestMemberTables(t *testing.T) {
	for _, table := range memberTables {
		names := strings.Fields(table.names)
		if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
			sorted := slices.Sorted(slices.Values(names))
			t.Errorf("out of order, or double; in order:\n%s", strings.Join(slices.Compact(sorted), " "))
		}
		for _, name := range names {
			f, exact := fieldOf([]byte(name), false)
			if own := name == "background" && table.ops == imageOps; f >= fieldSteering && !own || f != fieldNone && !exact {
				t.Errorf("%s is refused elsewhere, or another spelling of %s", name, f)
			}
			if name != "model" && namesModel([]byte(name), false) {
				t.Errorf("%s names a model", name)
			}
		}
	}
	for _, name := range strings.Fields(contentNames + " " + fetchingNames) {
		if knownMembers[name].ops == 0 && name != "query" {
			t.Errorf("%s is known for no operation", name)
		}
	}
	for f := fieldNone + 1; f < fieldLengthEnd; f++ {
		if fieldOps[f] == 0 {
			t.Errorf("%s is known for no operation", f)
		}
	}
	for _, op := range Operations() {
		for _, name := range []string{"model", op.MaxTokens} {
			if name != "" && !knownMembers[name].ops.Has(op.ID) {
				t.Errorf("%s is not known for %s", name, op.Name)
			}
		}
	}
	if names := KnownMembers(); !slices.IsSorted(names) || !slices.Contains(names, "num_ctx") || !slices.Contains(names, "top_k") {
		t.Errorf("%q", names)
	}
}

// TestMembersOfClients: what the clients that people use send passes with limits, to the member.
func TestMembersOfClients(t *testing.T) {
	for _, c := range []struct {
		client string
		op     OpID
		body   string
	}{
		{"openai-python", OpChatCompletions, `{"messages":[],"model":"m","audio":{},"frequency_penalty":0,"function_call":"auto","functions":[],"logit_bias":{},"logprobs":true,"max_completion_tokens":5,
			"max_tokens":5,"metadata":{},"modalities":["text"],"n":1,"parallel_tool_calls":true,"prediction":{},"presence_penalty":0,"prompt_cache_key":"k","prompt_cache_retention":"24h",
			"reasoning_effort":"low","response_format":{},"safety_identifier":"s","seed":1,"service_tier":"auto","stop":["x"],"store":false,"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},
			"temperature":1,"tool_choice":"auto","tools":[],"top_logprobs":1,"top_p":1,"user":"u","verbosity":"low","web_search_options":{},"prompt_cache_options":{}}`},
		{"LangChain, with nulls", OpChatCompletions, `{"model":"m","messages":[],"temperature":null,"max_completion_tokens":null,"stop":null,"n":null,"stream":false,"tools":null,"models":null,"background":false}`},
		{"vLLM's documents", OpChatCompletions, `{"model":"m","messages":[],"top_k":20,"min_p":0.05,"repetition_penalty":1.1,"guided_json":{},"guided_choice":["a"],"structured_outputs":{"choice":["a"]},"chat_template_kwargs":{"enable_thinking":false},
			"include_reasoning":true,"ignore_eos":true,"min_tokens":1,"stop_token_ids":[1],"skip_special_tokens":false,"add_generation_prompt":true,"continue_final_message":false,"echo":false,"documents":[],"cache_salt":"s",
			"return_token_ids":true,"truncate_prompt_tokens":5,"thinking_token_budget":9,"allowed_token_ids":[1],"bad_words":["x"],"use_beam_search":false,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		{"SGLang's documents", OpChatCompletions, `{"model":"m","messages":[],"regex":"a","ebnf":"x","no_stop_trim":true,"separate_reasoning":true,"stream_reasoning":true,"response_format":{"type":"structural_tag"}}`},
		{"llama.cpp's own page", OpChatCompletions, `{"model":"m","messages":[],"stream":true,"cache_prompt":true,"samplers":["top_k"],"dynatemp_range":0,"dynatemp_exponent":1,"xtc_probability":0,"xtc_threshold":0.1,"typical_p":1,
			"repeat_last_n":64,"repeat_penalty":1,"dry_multiplier":0,"dry_base":1.75,"dry_allowed_length":2,"dry_penalty_last_n":-1,"max_tokens":-1,"timings_per_token":true,"reasoning_format":"auto","return_progress":true,
			"grammar":"root ::= x","json_schema":{},"mirostat":0,"n_probs":1,"t_max_predict_ms":5,"backend_sampling":false,"chat_template_kwargs":{}}`},
		{"Cline, OpenRouter", OpChatCompletions, `{"model":"m","messages":[],"transforms":["middle-out"],"include_reasoning":true,"reasoning":{"effort":"low"},"usage":{"include":true},"top_a":0,"stream":true,"stream_options":{"include_usage":true}}`},
		{"Vercel's AI SDK", OpChatCompletions, `{"model":"m","user":"u","max_tokens":5,"temperature":0,"top_p":1,"frequency_penalty":0,"presence_penalty":0,"response_format":{"type":"json_schema"},"stop":["x"],"seed":1,
			"reasoning_effort":"low","verbosity":"low","messages":[],"tools":[],"tool_choice":"auto","stream":true,"stream_options":{"include_usage":true}}`},
		{"Open WebUI", OpChatCompletions, `{"stream":true,"model":"m","messages":[],"stream_options":{"include_usage":true},"temperature":0.8,"max_tokens":128,"top_p":0.9,"seed":0,"stop":["a"],"frequency_penalty":1,"presence_penalty":0,"reasoning_effort":"low","logit_bias":{},"response_format":{}}`},
		{"openai-python", OpCompletions, `{"model":"m","prompt":"x","best_of":1,"echo":false,"frequency_penalty":0,"logit_bias":{},"logprobs":1,"max_tokens":5,"n":1,"presence_penalty":0,"seed":1,"stop":"x","stream":true,"stream_options":{},"suffix":"s","temperature":1,"top_p":1,"user":"u"}`},
		{"a code completer", OpCompletions, `{"model":"m","prompt":"x","suffix":"y","max_tokens":5,"n_predict":5,"top_k":1,"min_p":0,"cache_prompt":true,"stop":["\n"],"guided_regex":"x"}`},
		{"openai-python", OpResponses, `{"model":"m","input":"x","context_management":[],"conversation":"c","include":["reasoning.encrypted_content"],"instructions":"i","max_output_tokens":5,"max_tool_calls":2,"metadata":{},"parallel_tool_calls":true,
			"previous_response_id":"r","prompt":{"id":"p"},"prompt_cache_key":"k","prompt_cache_retention":"24h","reasoning":{},"safety_identifier":"s","service_tier":"auto","store":false,"stream":true,
			"stream_options":{"include_obfuscation":false},"temperature":1,"text":{},"tool_choice":"auto","tools":[],"top_logprobs":1,"top_p":1,"truncation":"auto","user":"u","background":false}`},
		{"Codex", OpResponses, `{"model":"m","instructions":"i","input":[],"tools":[],"tool_choice":"auto","parallel_tool_calls":false,"reasoning":{"effort":"high","summary":"auto"},"store":false,"stream":true,
			"include":["reasoning.encrypted_content"],"service_tier":"priority","prompt_cache_key":"k","text":{"verbosity":"low"},"client_metadata":{"x":"y"},"stream_options":{},"access_programs":{}}`},
		{"vLLM's documents", OpResponses, `{"model":"m","input":"x","top_k":5,"repetition_penalty":1,"seed":1,"stop":["x"],"ignore_eos":false,"structured_outputs":{},"chat_template_kwargs":{},"cache_salt":"s"}`},
		{"anthropic-sdk-python", OpMessages, `{"max_tokens":5,"messages":[],"model":"m","cache_control":{},"container":null,"inference_geo":"us","metadata":{"user_id":"u"},"output_config":{},"service_tier":"auto","stop_sequences":["x"],
			"stream":true,"system":"s","temperature":1,"thinking":{"type":"adaptive"},"tool_choice":{"type":"auto"},"tools":[],"top_k":5,"top_p":1,"mcp_servers":[],"betas":["b"],"output_format":{}}`},
		{"Claude Code", OpMessages, `{"model":"m","messages":[],"system":[],"tools":[],"metadata":{"user_id":"u"},"max_tokens":32000,"thinking":{"type":"enabled","budget_tokens":31999},"context_management":{"edits":[]},
			"output_config":{"effort":"high"},"speed":"fast","diagnostics":{"previous_message_id":null},"stream":true,"temperature":1}`},
		{"Claude Code", OpCountTokens, `{"model":"m","messages":[],"system":[],"tools":[],"tool_choice":{},"thinking":{},"betas":["x"],"output_config":{},"context_management":{},"cache_control":{},"speed":"fast"}`},
		{"openai-python", OpEmbeddings, `{"input":["x"],"model":"m","dimensions":5,"encoding_format":"base64","user":"u"}`},
		{"vLLM's documents", OpEmbeddings, `{"model":"m","messages":[],"truncate_prompt_tokens":-1,"add_special_tokens":true,"normalize":true,"embed_dtype":"float32","endianness":"native","chat_template_kwargs":{}}`},
		{"Jina's and Voyage's clients", OpEmbeddings, `{"model":"m","input":["x"],"task":"retrieval.query","late_chunking":false,"embedding_type":"float","truncate":true,"input_type":"query","output_dimension":5,"output_dtype":"float","truncation":true}`},
		{"Jina's, Cohere's and Dify's", OpRerank, `{"model":"m","query":"q","documents":["d"],"top_n":1,"return_documents":true,"max_chunks_per_doc":5,"max_tokens_per_doc":5,"overlap_tokens":5,"rank_fields":["text"]}`},
		{"text-embeddings-inference's", OpRerankRoot, `{"model":"m","query":"q","texts":["d"],"raw_scores":false,"return_text":true,"truncate":true,"truncation_direction":"right"}`},
		{"Cohere's", OpRerankV2, `{"model":"m","query":"q","documents":["d"],"top_n":1,"max_tokens_per_doc":5}`},
		{"openai-python", OpModerations, `{"model":"m","input":[]}`},
		{"openai-python", OpImagesGenerations, `{"model":"m","prompt":"p","background":"auto","moderation":"low","n":1,"output_compression":5,"output_format":"png","partial_images":1,"quality":"low","response_format":"b64_json","size":"auto","stream":true,"style":"vivid","user":"u"}`},
		{"a client with images in JSON", OpImagesEdits, `{"model":"m","prompt":"p","images":[{"image_url":"x"}],"mask":{},"input_fidelity":"high","n":1,"size":"auto"}`},
		{"openai-python", OpAudioSpeech, `{"model":"m","input":"i","voice":"v","instructions":"x","response_format":"mp3","speed":1,"stream_format":"sse"}`},
		{"vLLM's documents", OpTokenize, `{"model":"m","prompt":"p","messages":[],"add_special_tokens":true,"return_token_strs":true,"add_generation_prompt":true,"continue_final_message":false,"chat_template_kwargs":{},"tools":[]}`},
		{"llama.cpp's page", OpTokenize, `{"model":"m","content":"p","add_special":true,"parse_special":true,"with_pieces":true}`},
		{"llama.cpp's page", OpDetokenize, `{"model":"m","tokens":[1]}`},
		{"ollama-python", OpOllamaChat, `{"model":"m","messages":[],"tools":[],"stream":false,"format":{},"options":{"numa":false,"num_ctx":1,"num_batch":1,"num_gpu":1,"main_gpu":0,"low_vram":false,"f16_kv":true,"logits_all":false,"vocab_only":false,
			"use_mmap":true,"use_mlock":false,"embedding_only":false,"num_thread":1,"num_keep":1,"seed":1,"num_predict":1,"top_k":1,"top_p":1,"tfs_z":1,"typical_p":1,"repeat_last_n":1,"temperature":1,"repeat_penalty":1,
			"presence_penalty":1,"frequency_penalty":1,"mirostat":1,"mirostat_tau":1,"mirostat_eta":1,"penalize_newline":true,"stop":["x"],"min_p":0},"keep_alive":"5m","think":"low","logprobs":true,"top_logprobs":2}`},
		{"ollama run", OpOllamaGenerate, `{"model":"m","prompt":"p","suffix":"s","system":"s","template":"t","context":[1],"stream":true,"raw":true,"format":"json","keep_alive":-1,"images":["x"],"options":{},"think":false,"truncate":true,"shift":true,"width":1,"height":1,"steps":1}`},
		{"Ollama's load", OpOllamaGenerate, `{"model":"m"}`},
		{"ollama-python", OpOllamaEmbed, `{"model":"m","input":["x"],"truncate":true,"options":{"num_ctx":1},"keep_alive":"5m","dimensions":5}`},
		{"ollama-python", OpOllamaEmbeddings, `{"model":"m","prompt":"x","options":{},"keep_alive":"5m"}`},
	} {
		e, err := ParseEnvelope([]byte(c.body))
		if err == nil {
			err = e.CheckSteering(c.op, nil)
		}
		if err == nil {
			err = e.CheckMembers([]byte(c.body), c.op, &Parameters{}, true)
		}
		if err != nil {
			t.Errorf("%s, %s: %v", c.client, c.op, err)
		}
	}
}

// TestUnknownMembers: with limits, a member passes only if it is known for the operation, in its exact spelling, or the route
// names it. Without limits all of them pass.
func TestUnknownMembers(t *testing.T) {
	route := &Parameters{
		Allow: []string{"x_ray", "models", "aws_*"}, Defaults: []ParameterDefault{{Name: "house_style", Value: "1"}}, Caps: []ParameterCap{{Name: "steps", Max: 9}},
		Refuse: []string{"num_gpu", "keep_alive", "seed"},
	}
	allowing := *route
	allowing.Refuse = nil
	for _, c := range []struct {
		op     OpID
		member string
		param  string // of what is refused with limits, else empty
	}{
		{OpChatCompletions, `"brand_new":1`, "brand_new"}, {OpChatCompletions, `"brand_new":null`, "brand_new"}, {OpChatCompletions, `"brand_new":false`, "brand_new"},
		{OpChatCompletions, `"brand_new":{}`, "brand_new"}, {OpChatCompletions, `"temperature":1,"brand_new":"","top_p":1`, "brand_new"},
		{OpChatCompletions, `"Top_K":1`, "Top_K"}, {OpChatCompletions, `"top_\u006b":1`, `top_\u006b`}, {OpChatCompletions, `"top-k":1`, "top-k"}, {OpChatCompletions, `"topK":1`, "topK"},
		{OpChatCompletions, `"top_k ":1`, "top_k "}, {OpChatCompletions, `"sessionId":"s"`, "sessionId"}, {OpChatCompletions, `"options":{}`, "options"}, {OpChatCompletions, `"query":"x"`, "query"},
		{OpChatCompletions, `"stream_options":{"include_usage":true,"brand_new":1}`, "stream_options.brand_new"}, {OpChatCompletions, `"stream_options":{"Include_Obfuscation":1}`, "stream_options.Include_Obfuscation"},
		{OpChatCompletions, `"chat_template_kwargs":{"enable_thinking":false,"thinking_budget":5,"documents":[],"model_identity":"x"}`, ""}, {OpChatCompletions, `"chat_template_kwargs":{}`, ""}, {OpChatCompletions, `"chat_template_kwargs":null`, ""},
		{OpChatCompletions, `"chat_template_kwargs":{"enable_thinking":false,"chat_template":"x"}`, "chat_template_kwargs.chat_template"}, {OpTokenize, `"chat_template_kwargs":{"chat_template":null}`, "chat_template_kwargs.chat_template"},
		{OpEmbeddings, `"chat_template_kwargs":{"max_length":100000,"padding":"max_length"}`, "chat_template_kwargs.max_length"}, {OpResponses, `"chat_template_kwargs":{"tokenize":false}`, "chat_template_kwargs.tokenize"},
		{OpChatCompletions, `"chat_template_kwargs":{"chat_templat\u0065":"x"}`, `chat_template_kwargs.chat_templat\u0065`}, {OpChatCompletions, `"chat_template_kwargs":{"\u00e4":"x"}`, ""},
		{OpChatCompletions, `"metadata":{"\u00e4":"x","a":{"tags":[],"model":"x"}}`, ""}, {OpResponses, `"metadata":{"a":"b","tags":["paid"]}`, "metadata.tags"}, {OpMessages, `"metadata":{"\u0074ags":"paid"}`, `metadata.\u0074ags`}, {OpEmbeddings, `"metadata":{"guardrails":null}`, "metadata.guardrails"},
		{OpChatCompletions, `"metadata":{"user_id":"u","opted_out_global_guardrails":["x"]}`, "metadata.opted_out_global_guardrails"}, {OpMessages, `"metadata":{"user_api_key_metadata":{}}`, "metadata.user_api_key_metadata"},
		{OpMessages, `"chat_template_kwargs":{"a":1},"chat_template_kwargs":{"processor_kwargs":{}}`, "chat_template_kwargs.processor_kwargs"},
		{OpChatCompletions, `"stream_options":{"steps":1}`, "stream_options.steps"}, {OpChatCompletions, `"stream_options":{"x_ray":1}`, ""}, {OpOllamaChat, `"options":{"steps":1,"house_style":1}`, ""},
		{OpChatCompletions, `"stream_interval":100000`, "stream_interval"}, {OpChatCompletions, `"watermarking":false`, "watermarking"}, {OpChatCompletions, `"prompt_embeds":"x"`, "prompt_embeds"}, {OpChatCompletions, `"bootstrap_room":1`, "bootstrap_room"},
		{OpChatCompletions, `"x_ray":1,"house_style":"x"`, ""}, {OpChatCompletions, `"X_Ray":1`, "X_Ray"}, {OpChatCompletions, `"house_style":null,"steps":5`, ""},
		{OpChatCompletions, `"models":["a"],"aws_region":"x","fallbacks":null,"background":false`, ""}, {OpChatCompletions, `"Models":["a"]`, "Models"}, {OpChatCompletions, `"AWS_x":"a"`, "AWS_x"},
		{OpChatCompletions, `"fallBacks":null`, "fallBacks"}, {OpChatCompletions, `"metadata":{"brand_new":1}`, ""}, {OpChatCompletions, `"seed":1`, "seed"}, {OpChatCompletions, `"` + strings.Repeat("y", 100) + `":1`, strings.Repeat("y", maxModelMember)},
		{OpChatCompletions, `"metadata":"{\"tags\":[\"paid\"]}"`, "metadata"}, {OpResponses, `"metadata":[["tags",["paid"]]]`, "metadata"}, {OpMessages, `"metadata":""`, "metadata"}, {OpEmbeddings, `"metadata":null`, ""},
		{OpChatCompletions, `"chat_template_kwargs":"{\"padding\":true}"`, "chat_template_kwargs"}, {OpTokenize, `"chat_template_kwargs":[]`, "chat_template_kwargs"}, {OpOllamaChat, `"options":"{\"num_gpu\":0}"`, "options"}, {OpOllamaEmbed, `"options":1`, "options"},
		{OpMessages, `"messages":[],"prompt":"x"`, "prompt"}, {OpEmbeddings, `"input":"x","temperature":1`, "temperature"}, {OpRerank, `"query":"x","max_tokens":1`, "max_tokens"},
		{OpOllamaChat, `"temperature":1`, "temperature"}, {OpOllamaChat, `"options":{"num_ctx":1,"x_ray":2}`, ""}, {OpOllamaChat, `"options":{"brand_new":1}`, "options.brand_new"},
		{OpOllamaChat, `"options":{"Num_Ctx":1}`, "options.Num_Ctx"}, {OpOllamaChat, `"options":{"num_gp\u0075":1}`, `options.num_gp\u0075`}, {OpOllamaChat, `"options":{"num_gpu":0}`, "options.num_gpu"},
		{OpOllamaChat, `"options":{"NUM_GPU":0}`, "options.NUM_GPU"}, {OpOllamaChat, `"keep_alive":-1`, "keep_alive"}, {OpOllamaChat, `"Keep_Alive":-1`, "Keep_Alive"}, {OpOllamaChat, `"options":{}`, ""}, {OpOllamaChat, `"options":null`, ""},
		{OpOllamaChat, `"Options":{"num_gpu":0}`, "options"}, {OpOllamaGenerate, `"prompt":"x","_debug_render_only":true`, "_debug_render_only"},
	} {
		body := []byte(`{"model":"m",` + c.member + `}`)
		e, err := ParseEnvelope(body)
		if err == nil {
			err = errors.Join(e.CheckSteering(c.op, route.Allow), e.CheckMembers(body, c.op, &Parameters{}, false))
		}
		if err != nil && c.param != "options" {
			t.Errorf("%s without limits: %v", c.member, err)
			continue
		}
		if err == nil {
			err = e.CheckMembers(body, c.op, route, true)
		}
		refused, _ := errors.AsType[*Error](err)
		if c.param == "" && err != nil || c.param != "" && (refused == nil || refused.Param != c.param || refused.Status != 400) {
			t.Errorf("%s: %v", c.member, err)
		}
		if c.param != "" && c.param != "options" && (refused.Code != "unsupported_parameter" || !strings.Contains(refused.Message, c.param)) {
			t.Errorf("%s: %+v", c.member, refused)
		}
		if err := e.CheckMembers(body, c.op, route, false); (err != nil) != (c.param != "") {
			t.Errorf("%s, where the route's refusals are the only limit: %v", c.member, err)
		}
		passes := c.param == "" || slices.Contains([]string{"seed", "keep_alive", "options.num_gpu"}, c.param)
		if err := e.CheckMembers(body, c.op, &allowing, true); (err == nil) != passes {
			t.Errorf("%s, where the route refuses nothing: %v", c.member, err)
		}
	}
	body := []byte(`{"":1,"model":"m"}`)
	if e, err := ParseEnvelope(body); err != nil || e.CheckMembers(body, OpChatCompletions, &Parameters{}, true) == nil {
		t.Errorf("a member without a name passed (%v)", err)
	}
}

func TestUnknownFields(t *testing.T) {
	route := &Parameters{Allow: []string{"x_ray"}, Refuse: []string{"seed"}, Defaults: []ParameterDefault{{Name: "house_style", Value: "1"}}}
	for _, c := range []struct {
		fields []string
		param  string
	}{
		{[]string{fileNamed("file", "a.wav", "x"), plainField("language", "en"), plainField("prompt", "p"), plainField("response_format", "json"), plainField("temperature", "0")}, ""},
		{[]string{plainField("timestamp_granularities[]", "word"), plainField("include[]", "logprobs"), plainField("chunking_strategy[type]", "server_vad")}, ""},
		{[]string{plainField("stream", "true"), plainField("vad_filter", "true"), plainField("max_completion_tokens", "5"), plainField("x_ray", "1")}, ""},
		{[]string{plainField("metadata[tags][]", "paid")}, "metadata"}, {[]string{plainField("metadata", `{"tags":["paid"]}`)}, "metadata"}, {[]string{plainField("house_style", "")}, ""}, {[]string{plainField("brand_new", "")}, "brand_new"}, {[]string{plainField("brand_new[]", "x")}, "brand_new"},
		{[]string{plainField("Language", "en")}, "Language"}, {[]string{plainField("language.x", "en")}, "language.x"}, {[]string{plainField("vad-filter", "en")}, "vad-filter"},
		{[]string{plainField("seed", "1")}, "seed"}, {[]string{fileNamed("image", "a", "x")}, "image"}, {[]string{plainField("background", "")}, ""}, {[]string{plainField("Background", "")}, "Background"},
	} {
		f, err := ParseForm(testBoundary, formOf(append(c.fields, plainField("model", "m"))...))
		if err != nil {
			t.Errorf("%q: %v", c.fields, err)
			continue
		}
		refused, _ := errors.AsType[*Error](f.CheckMembers(OpAudioTranscriptions, route, true))
		if c.param == "" && refused != nil || c.param != "" && (refused == nil || refused.Param != c.param || refused.Code != "unsupported_parameter") {
			t.Errorf("%q: %v", c.fields, refused)
		}
		if err := f.CheckMembers(OpAudioTranscriptions, &Parameters{}, false); err != nil {
			t.Errorf("%q without limits: %v", c.fields, err)
		}
	}
	f, err := ParseForm(testBoundary, formOf(plainField("model", "m"), plainField("prompt", "p"), fileNamed("image[]", "a.png", "x"), fileNamed("mask", "b.png", "x"), plainField("size", "auto"), plainField("background", "opaque")))
	if err == nil {
		err = f.CheckSteering(OpImagesEdits, nil)
	}
	if err == nil {
		err = f.CheckMembers(OpImagesEdits, &Parameters{}, true)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestCheckMembersIsFree: a request of known members costs nothing, with limits or without.
func TestCheckMembersIsFree(t *testing.T) {
	e, err := ParseEnvelope(chatBody)
	if err != nil {
		t.Fatal(err)
	}
	p := &Parameters{Caps: []ParameterCap{{Name: "max_tokens", Max: 5}}}
	if n := testing.AllocsPerRun(100, func() { err = e.CheckMembers(chatBody, OpChatCompletions, p, true) }); n > 0 || err != nil {
		t.Errorf("%v allocations, %v", n, err)
	}
}

// FuzzCheckMembers: of what passes with limits, a reader of JSON finds known members only.
func FuzzCheckMembers(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","top_k":1,"brand_new":2}`, `{"options":{"num_ctx":1,"x":2},"model":"m"}`, `{"stream_options":{"include_usage":true,"y":1}}`,
		`{"top_\u006b":1}`, `{"model":"m","options":{"a":{"b":[1]}},"options":{}}`, `{"fallbacks":null,"aws_x":null,"Models":null}`, `{}`, `{"":0}`,
	} {
		f.Add([]byte(s), uint8(OpOllamaChat))
		f.Add([]byte(s), uint8(OpChatCompletions))
	}
	f.Fuzz(func(t *testing.T, body []byte, n uint8) {
		op := operations[int(n)%len(operations)].ID
		e, err := ParseEnvelope(body)
		if err != nil || e.CheckSteering(op, nil) != nil || e.CheckMembers(body, op, &Parameters{}, true) != nil {
			return
		}
		var members, nested map[string]json.RawMessage
		if err := json.Unmarshal(body, &members); err != nil {
			t.Fatal(err)
		}
		for name, value := range members {
			if !knownMembers[name].ops.Has(op) && !isSteering(name) {
				t.Errorf("%q passed", name)
			}
			if known := nestedMembers[name]; known != nil && json.Unmarshal(value, &nested) == nil {
				for name := range nested {
					if !known.knows([]byte(name)) {
						t.Errorf("%q passed, nested", name)
					}
				}
				nested = nil
			}
		}
		if err := e.CheckMembers(body, op, &Parameters{Refuse: []string{"nothing"}}, true); err != nil {
			t.Errorf("refused in the second look alone: %v", err)
		}
	})
}
