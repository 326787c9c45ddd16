package openai

import (
	"fmt"
	"slices"
)

// steeringNames are the root members with which a known gateway, cloud or engine behind a Node can be made to run another
// model than the request's, or to use another host or credential for it. A route's list of models, and who may use it,
// would not hold if they passed. A name that ends with '*' stands for all that begin so.
var steeringNames = [...]string{
	// Other models. OpenRouter, LiteLLM, Bifrost, Vercel, Anthropic, Groq, Together, LM Studio, MLX.
	"models", "fallbacks", "fallback", "route", "preset", "plugins", "context_window_fallbacks", "content_policy_fallbacks",
	"context_window_fallback_dict", "model_list", "model_group", "router_settings_override", "prompt_id", "compound_custom",
	"safety_model", "draft_model",
	// Other weights on the model. SGLang, vLLM, llama.cpp, Workers AI, TGI, LoRAX, MLX.
	"lora", "lora_path", "lora_request", "adapter_id", "adapter_source", "adapters",
	// Other hosts. OpenRouter, LiteLLM, LocalAI, SGLang, vLLM.
	"provider", "provider_options", "custom_llm_provider", "backend", "deployment_id", "specific_deployment", "deployment_url",
	"api_base", "base_url", "api_version", "sagemaker_base_url", "s3_endpoint_url",
	"bootstrap_host", "bootstrap_port", "kv_transfer_params", "ec_transfer_params",
	// Other credentials. LiteLLM.
	"api_key", "api_token", "organization", "litellm_credential_name", "user_config",
	// What is merged into the request that goes on, or sent with it. LiteLLM.
	"extra_body", "extra_headers", "extra_query", "headers", "litellm_params",
	// Code that runs in the engine. SGLang.
	"custom_logit_processor",
	// Hosts and credentials of clouds in LiteLLM, and all of TensorZero's. These stand last.
	"aws_*", "azure_*", "vertex_*", "tensorzero::*",
}

// steeringPrefixes is how many of them end with '*'.
const steeringPrefixes = 4

// steeringPrefix returns the field of steeringNames whose prefix a folded name has, or fieldNone.
func steeringPrefix(folded []byte) field {
	for i, name := range steeringNames[len(steeringNames)-steeringPrefixes:] {
		if prefix := name[:len(name)-1]; len(folded) >= len(prefix) && string(folded[:len(prefix)]) == prefix {
			return fieldSteering + field(len(steeringNames)-steeringPrefixes+i)
		}
	}
	return fieldNone
}

// SteeringMembers returns a copy of the names of the members that are refused unless a route allows them; one that ends with '*'
// stands for all that begin so.
func SteeringMembers() []string { return slices.Clone(steeringNames[:]) }

// CheckSteering refuses a request with a member that could make its provider run another model, or use another host or
// credential, unless the name is among the allowed. A member that is null says nothing. The error is an *Error with
// status 400 whose Param is the member.
func (e *Envelope) CheckSteering(allowed []string) error {
	if e.steering == 0 {
		return nil
	}
	for i, name := range steeringNames {
		if e.steering&(1<<i) == 0 || slices.Contains(allowed, name) {
			continue
		}
		return steeringError(name)
	}
	return nil
}

// CheckSteering is [Envelope.CheckSteering] for a form, of which an empty field says nothing.
func (f *Form) CheckSteering(allowed []string) error {
	for i := range f.parts {
		part := &f.parts[i]
		base, _ := cutIndices(part.name)
		field, _ := fieldOf([]byte(foldName(base)), false)
		if field >= fieldSteering && (part.file || len(part.content) > 0) && !slices.Contains(allowed, field.String()) {
			return steeringError(field.String())
		}
	}
	return nil
}

func steeringError(name string) *Error {
	e := InvalidRequest(name, fmt.Sprintf("%s is not passed on: it can make a provider run another model, or use another host or "+
		"credential, than this gateway chose. Its operator can allow it for a route.", name))
	e.Code = "unsupported_parameter"
	return e
}
