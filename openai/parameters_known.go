package openai

import "slices"

// otherParameters are members that some engine or gateway has, beside those of KnownMembers and of SteeringMembers: requests with
// limits do not carry them, but an operator may write them in a default or a cap.
var otherParameters = [...]string{
	// OpenAI's and Anthropic's.
	"background_options", "user_profile_id",
	// vLLM's and SGLang's.
	"chat_template", "detokenize", "mm_processor_kwargs", "return_hidden_states", "return_routed_experts",
	// llama.cpp's.
	"embd_normalize", "input_extra", "input_prefix", "input_suffix", "response_fields",
	// TGI's, TensorRT-LLM's, MLX's, text-generation-webui's.
	"decoder_input_details", "details", "instruction_template", "logits_processor", "mode", "num_beams", "return_full_text", "stopping_strings",
	"top_n_tokens", "watermark",
	// Of gateways and clouds.
	"citations", "enable_search", "fps", "frames", "num_inference_steps", "response_modalities", "safety_settings", "search_parameters",
	"thinking_config", "ttl", "web_search",
}

// KnownParameters returns the names of root members that some operation or engine is known to have, in no order. It makes a new
// list. A name that isn't there may mean something all the same; one that is near to one of them was probably mistyped.
func KnownParameters() []string {
	return slices.Concat(KnownMembers(), otherParameters[:], steeringNames[:len(steeringNames)-steeringPrefixes])
}
