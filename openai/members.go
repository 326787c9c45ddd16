package openai

import (
	"bytes"
	"maps"
	"slices"
	"strings"
)

// A list of harmful members is never whole: each release of an engine or gateway brings new ones. So a request with limits
// carries only members of which it is known what they do. The tables below have them by operation: those of the operation's
// own API, and those that engines document for it beside. What one request could use to run longer than its limits know, to
// take another's place or data, or to spend on another's account, is in none of them: it is in steeringNames, or unknown.

// opsOf is the set of these operations.
func opsOf(ids ...OpID) (set OpSet) {
	for _, id := range ids {
		set = set.With(id)
	}
	return set
}

var (
	everyOp      = ^OpSet(0)
	chatOps      = opsOf(OpChatCompletions)
	promptOps    = opsOf(OpCompletions)
	responsesOps = opsOf(OpResponses)
	messagesOps  = opsOf(OpMessages, OpCountTokens)
	// writingOps write text, with sampling in the request itself.
	writingOps   = chatOps | promptOps | responsesOps | messagesOps
	embedOps     = opsOf(OpEmbeddings)
	rerankOps    = opsOf(OpRerank, OpRerankRoot, OpRerankV2)
	imageOps     = opsOf(OpImagesGenerations, OpImagesEdits)
	recordingOps = opsOf(OpAudioTranscriptions, OpAudioTranslations)
	ollamaOps    = opsOf(OpOllamaChat, OpOllamaGenerate, OpOllamaEmbed, OpOllamaEmbeddings)
	// ollamaWriting write text, with sampling in options.
	ollamaWriting = opsOf(OpOllamaChat, OpOllamaGenerate)
)

// memberTable are the members that some operations are known to define; names are in order, with white space between.
type memberTable struct {
	ops   OpSet
	names string
}

var memberTables = [...]memberTable{
	// What the Edge reads or writes, and what clients say of themselves.
	{everyOp, `model prompt_cache_key session_id stream stream_options user`},
	{everyOp &^ (imageOps | recordingOps), `metadata`},
	// The answer's length and number, by all names that caps bound. llama.cpp reads them on Ollama's paths, too.
	{writingOps | ollamaWriting | recordingOps, `
		best_of max_completion_tokens max_gen_len max_length max_new_tokens max_output_tokens max_tokens max_tokens_to_sample n
		n_cmpl n_predict num_predict num_return_sequences tokens_to_generate`},
	// Sampling: OpenAI, vLLM, SGLang, llama.cpp, LM Studio, TGI, OpenRouter, Mistral, Fireworks.
	{writingOps, `
		adaptive_decay adaptive_target allowed_token_ids backend_sampling bad_words do_sample dry_allowed_length dry_base
		dry_multiplier dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_high dynatemp_low dynatemp_range
		early_stopping encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff frequency_penalty ignore_eos
		include_stop_str_in_output length_penalty logit_bias min_keep min_p min_tokens mirostat mirostat_eta mirostat_lr
		mirostat_mode mirostat_target mirostat_tau n_keep no_repeat_ngram_size no_stop_trim presence_penalty random_seed
		repeat_last_n repeat_penalty repetition_context_size repetition_detection repetition_penalty repetition_penalty_range
		samplers seed skip_special_tokens smoothing_curve smoothing_factor spaces_between_special_tokens stop stop_token_ids
		t_max_predict_ms temperature tfs tfs_z top_a top_k top_n_sigma top_p typical typical_p use_beam_search
		xtc_probability xtc_threshold`},
	// Structured output.
	{writingOps, `
		ebnf format grammar grammar_lazy grammar_triggers guided_choice guided_decoding_backend guided_grammar guided_json
		guided_regex guided_whitespace_pattern json_schema preserved_tokens regex response_format strict structural_tag
		structured_outputs`},
	// Reasoning.
	{writingOps, `
		enable_thinking include_reasoning max_thinking_tokens prompt_mode reasoning reasoning_budget reasoning_budget_message
		reasoning_budget_tokens reasoning_effort reasoning_format reasoning_in_content reasoning_split separate_reasoning
		stream_reasoning think thinking thinking_budget thinking_budget_tokens thinking_forced_open thinking_token_budget
		verbosity`},
	// What else the answer holds, what is kept of the prompt, and how it is made of the messages.
	{writingOps, `
		add_generation_prompt add_special_tokens cache_control cache_prompt cache_salt chat_template_kwargs
		context_length_exceeded_behavior continue_final_message documents echo extra_key logprob_token_ids logprobs n_cache_reuse
		n_discard n_probs parallel_tool_calls parse_tool_calls post_sampling_probs prompt_cache_options prompt_cache_retention
		prompt_logprobs prompt_truncate_len return_cached_tokens_details return_meta_info return_progress return_prompt_token_ids
		return_token_ids return_tokens return_tokens_as_token_ids safe_prompt safety_identifier service_tier store
		timings_per_token tool_choice tools top_logprobs trace transforms truncate_prompt_tokens
		truncation truncation_side usage`},
	{chatOps, `
		audio citation_options disable_tool_validation function_call functions guideline image_config messages modalities
		moderation prediction tool_prompt tool_stream web_search_options`},
	{promptOps, `n_indent prompt suffix`},
	{responsesOps, `
		access_programs client_metadata context_management conversation image include input instructions max_tool_calls
		moderation previous_response_id prompt text`},
	{messagesOps, `
		anthropic_beta anthropic_version betas compaction container context_management diagnostics inference_geo mcp_servers
		messages output_config output_format speed stop_sequences system thread`},
	{embedOps, `
		add_generation_prompt add_special_tokens cache_salt chat_template_kwargs continue_final_message dimensions embed_dtype
		embedding_type embedding_types encoding_format endianness input input_type instruction late_chunking messages modality
		normalize normalized output_dimension output_dtype prompt_name return_multivector safety_identifier task truncate
		truncate_prompt_tokens truncation truncation_direction truncation_side use_activation`},
	{rerankOps, `
		activation add_special_tokens chat_template_kwargs documents instruct instruction max_chunks_per_doc max_tokens_per_doc
		overlap_tokens query rank_fields raw_scores return_documents return_text softmax_normalize texts top_k top_n truncate
		truncate_prompt_tokens truncation truncation_direction truncation_side use_activation`},
	{opsOf(OpModerations), `input safety_identifier`},
	{imageOps, `
		aspect_ratio background complexity frame_count frame_duration_ms guidance_scale image images input_fidelity markup mask
		moderation n negative_prompt output_compression output_format partial_images prompt quality response_format
		safety_identifier seed size style svg true_cfg_scale`},
	{opsOf(OpAudioSpeech), `
		input instructions lang_code language response_format seed speed stream_format temperature top_k top_p voice`},
	{recordingOps, `
		chunking_strategy context_bias diarize file frequency_penalty hotwords include keywords known_speaker_names
		known_speaker_references language languages min_p presence_penalty prompt repetition_penalty response_format seed
		stream_continuous_usage_stats stream_include_usage temperature timestamp_granularities to_language top_k top_p
		vad_filter`},
	{opsOf(OpTokenize), `
		add_generation_prompt add_special add_special_tokens chat_template_kwargs content continue_final_message input inputs
		messages parse_special prompt return_token_strs text tools with_pieces`},
	{opsOf(OpDetokenize), `skip_special_tokens token_ids tokens`},
	{ollamaOps, `keep_alive options truncate`},
	{ollamaWriting, `format logprobs shift think top_logprobs`},
	{opsOf(OpOllamaChat), `messages tools`},
	{opsOf(OpOllamaGenerate), `context height images prompt raw steps suffix system template width`},
	{opsOf(OpOllamaEmbed), `dimensions input`},
	{opsOf(OpOllamaEmbeddings), `prompt`},
}

const (
	// contentNames are members that hold what the client has written or was given, in any shape: names in them mean nothing
	// to a provider.
	contentNames = `client_metadata context documents logit_bias prediction query texts`
	// fetchingNames are members that make a provider read more than the request: also a template, as a prompt of any length
	// comes of it.
	fetchingNames = `container conversation mcp_servers previous_response_id template thread web_search_options`
)

// memberInfo is what is known of a member of a request's root. The zero value is that of an unknown one.
type memberInfo struct {
	ops     OpSet // that define it
	content bool  // see contentNames
	fetches bool  // see fetchingNames
}

// knownMembers are the members of memberTables, fieldOps the operations that define a field. They are filled once at start-up
// and only read afterwards.
var (
	knownMembers = make(map[string]memberInfo)
	fieldOps     [fieldLengthEnd]OpSet
)

// nestedTable says which members a member of the root may have: only the known ones, or, where those are not listed, all but
// the odd ones. With content the values of the others mean nothing to a provider.
type nestedTable struct {
	known, odd map[string]bool
	content    bool
}

// knows reports whether a request with limits may have a nested member of this name, as it is written.
func (t *nestedTable) knows(name []byte) bool {
	if t.known != nil {
		return t.known[string(name)]
	}
	if bytes.IndexByte(name, '\\') >= 0 {
		name = appendUnescaped(nil, name)
	}
	return !t.odd[string(name)]
}

// templateMember holds variables of a model's chat template, which only the model's maker knows.
const templateMember = "chat_template_kwargs"

// templateArguments are not: they are arguments of the functions in transformers that SGLang, Megatron and others give
// templateMember to. A template of the client's own, padding, or other frames of a film make a prompt of any length.
const templateArguments = `
	audio_kwargs chat_template common_kwargs conversation do_resize do_sample_frames fps images_kwargs load_audio_from_video max_frames
	max_length max_pixels media_io_kwargs min_frames min_pixels mm_processor_kwargs num_frames padding padding_side
	pad_to_multiple_of processor_kwargs return_assistant_tokens_mask return_dict return_tensors sampling_rate size stride
	text_kwargs tokenize tokenizer_kwargs truncation video_fps video_load_backend videos_kwargs`

// metadataSteering are members of metadata by which LiteLLM chooses among the deployments of one name, which may be other models,
// and which guardrails it passes over. Other gateways may have rules for any name there.
// Of user_api_key_..., LiteLLM's own notes of the caller, these say what a key or team may pass over; it drops the client's in newer
// releases only.
const metadataSteering = `
	disable_global_guardrail disable_global_guardrails guardrails model_group opted_out_global_guardrails policies tags
	user_api_key_auth user_api_key_auth_metadata user_api_key_metadata user_api_key_team_metadata`

// nestedMembers are the members of those members of the root that hold parameters.
var nestedMembers = map[string]*nestedTable{
	optionsMember:    {known: setOf(append(optionNames[:], optionLength))},
	"stream_options": {known: setOf([]string{"include_usage", "include_obfuscation", "continuous_usage_stats"})},
	templateMember:   {odd: setOf(strings.Fields(templateArguments))},
	"metadata":       {odd: setOf(strings.Fields(metadataSteering)), content: true},
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

func init() {
	content, fetching := setOf(strings.Fields(contentNames)), setOf(strings.Fields(fetchingNames))
	for _, table := range memberTables {
		for name := range strings.FieldsSeq(table.names) {
			ops := knownMembers[name].ops | table.ops
			knownMembers[name] = memberInfo{ops, content[name], fetching[name]}
		}
	}
	for f := range fieldOps {
		fieldOps[f] = knownMembers[field(f).String()].ops
	}
}

// KnownMembers returns the names of all members that some operation is known to define, and of Ollama's options, in order.
func KnownMembers() []string {
	names := slices.Collect(maps.Keys(knownMembers))
	for name := range nestedMembers[optionsMember].known {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ReadsMore reports whether the request may make its provider read more than the request: it has a tool that the provider
// runs, or a member that is not known to do nothing of that kind.
func (e *Envelope) ReadsMore() bool { return e.hosted }
