package openai

import "slices"

// otherParameters are root members of requests that the Edge itself need not know: of OpenAI's operations and Anthropic's, of
// Ollama's, of rerankers and tokenizers, and those that vLLM, SGLang, llama.cpp, TGI, LM Studio and gateways add to them. An
// operator who writes another name in a default or a cap has probably mistyped it, so a name may be missing here, but none
// may be wrong.
var otherParameters = [...]string{
	// OpenAI's.
	"access_programs", "audio", "background_options", "chunking_strategy", "context_management", "conversation", "dimensions", "echo", "encoding_format", "file", "function_call",
	"functions", "image", "include", "input_fidelity", "known_speaker_names", "known_speaker_references", "language", "logit_bias",
	"keywords", "languages", "complexity", "frame_count", "frame_duration_ms", "markup", "svg", "mask", "max_tool_calls", "modalities", "moderation", "output_compression", "output_format", "parallel_tool_calls", "partial_images",
	"prediction", "previous_response_id", "prompt_cache_options", "prompt_cache_retention", "quality", "reasoning", "reasoning_effort",
	"response_format", "safety_identifier", "service_tier", "size", "speed", "store", "stream_format", "style", "suffix", "text",
	"timestamp_granularities", "tool_choice", "truncation", "verbosity", "voice", "web_search_options",
	// Anthropic's.
	"betas", "billing_policy", "cache_control", "compaction", "container", "diagnostics", "fallback_credit_token", "inference_geo", "mcp_servers", "output_config", "stop_sequences", "thinking", "thread", "user_profile_id", "workspace_id",
	// Ollama's.
	"context", "format", "images", "raw", "template", "think", "truncate",
	// Of rerankers and tokenizers.
	"documents", "max_chunks_per_doc", "max_tokens_per_doc", "query", "rank_fields", "return_documents", "top_n", "content", "tokens",
	"with_pieces", "add_special", "parse_special", "return_token_strs",
	// vLLM's.
	"add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt", "chat_template",
	"chat_template_kwargs", "continue_final_message", "detokenize", "guided_choice", "guided_decoding_backend", "guided_grammar",
	"guided_json", "guided_regex", "guided_whitespace_pattern", "ignore_eos", "include_reasoning", "include_stop_str_in_output",
	"length_penalty", "min_tokens", "mm_processor_kwargs", "repetition_penalty", "request_id", "return_token_ids",
	"return_tokens_as_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "structural_tag",
	"structured_outputs", "truncate_prompt_tokens", "use_beam_search",
	// SGLang's.
	"ebnf", "no_stop_trim", "regex", "return_hidden_states", "return_routed_experts", "separate_reasoning", "stream_reasoning",
	// llama.cpp's.
	"adaptive_decay", "adaptive_target", "backend_sampling", "cache_prompt", "dry_allowed_length", "dry_base", "dry_multiplier",
	"dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "dynatemp_range", "embd_normalize", "grammar", "grammar_lazy",
	"grammar_triggers", "input_extra", "input_prefix", "input_suffix", "json_schema", "min_keep", "n_cache_reuse", "n_discard",
	"n_indent", "n_keep", "n_probs", "parse_tool_calls", "post_sampling_probs", "preserved_tokens", "reasoning_budget_message",
	"reasoning_format", "response_fields", "return_progress", "return_tokens", "samplers", "thinking_forced_open", "timings_per_token",
	"top_n_sigma", "xtc_probability", "xtc_threshold",
	// TGI's, TensorRT-LLM's, MLX's, text-generation-webui's.
	"decoder_input_details", "details", "do_sample", "early_stopping", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
	"guidance_scale", "instruction_template", "logits_processor", "mode", "negative_prompt", "no_repeat_ngram_size", "num_beams",
	"random_seed", "repetition_context_size", "return_full_text", "smoothing_curve", "smoothing_factor", "stopping_strings",
	"tool_prompt", "top_a", "top_n_tokens", "watermark",
	// Of gateways and clouds.
	"anthropic_version", "citations", "enable_search", "enable_thinking", "fps", "frames", "num_inference_steps",
	"repetition_penalty_range", "response_modalities", "safe_prompt", "safety_settings", "search_parameters", "steps", "thinking_budget",
	"thinking_config", "transforms", "ttl", "usage", "web_search", "width", "height",
}

// KnownParameters returns the names of root members that some operation or engine is known to have, in no order. It makes a new
// list. A name that isn't there may mean something all the same.
func KnownParameters() []string {
	list := slices.Concat(lengthNames[:], unlimited[:], optionNames[:], otherParameters[:], steeringNames[:len(steeringNames)-steeringPrefixes])
	for _, name := range fieldNames {
		if name != "" {
			list = append(list, name)
		}
	}
	return list
}
