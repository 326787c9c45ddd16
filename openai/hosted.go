package openai

import "strings"

// plainMembers are the members of requests, beside the fields, contents and what is refused, that make no provider read more
// than the request. Those that do have new names with every provider (search_parameters, enable_search, web_search_options,
// mcp_servers, container), so the list is of the others.
var plainMembers = func() map[string]bool {
	m := map[string]bool{}
	for name := range strings.FieldsSeq(`
		add_generation_prompt add_special_tokens allowed_openai_params audio bad_words cache_control cache_prompt cache_salt
		chat_template_kwargs continue_final_message dimensions do_sample dry_multiplier early_stopping echo
		enable_thinking encoding_format eos_token_id extra_key format frequency_penalty function_call functions grammar
		guided_choice guided_decoding_backend guided_grammar guided_json guided_regex ignore_eos images include include_reasoning
		include_stop_str_in_output inference_geo json_schema keep_alive length_penalty logprobs
		max_thinking_tokens min_p min_tokens mirostat mirostat_eta mirostat_tau modalities n_keep no_repeat_ngram_size
		output_config output_format parallel_tool_calls parse_tool_calls presence_penalty prompt_cache_options
		prompt_cache_retention prompt_logprobs random_seed raw reasoning reasoning_budget reasoning_effort reasoning_format
		regex repeat_last_n repeat_penalty repetition_penalty request_id response_format return_token_ids
		return_tokens_as_token_ids safe_prompt safety_identifier samplers seed separate_reasoning service_tier
		skip_special_tokens spaces_between_special_tokens speed stop stop_sequences stop_token_ids store stream_reasoning
		strict structured_outputs suffix temperature template text tfs_z think thinking thinking_budget thinking_budget_tokens
		thinking_token_budget timings_per_token title tool_choice top_k top_logprobs top_n_sigma top_p truncate truncate_prompt_tokens
		truncation typical_p use_beam_search verbosity xtc_probability xtc_threshold
	`) {
		m[name] = true
	}
	return m
}()

// ReadsMore reports whether the request may make its provider read more than the request: it has a tool that the provider
// runs, or a member that is not known to do nothing of that kind.
func (e *Envelope) ReadsMore() bool { return e.hosted }
