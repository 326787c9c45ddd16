package openai

import (
	"bytes"
	"fmt"
	"slices"
)

// steeringNames are the root members with which a known gateway, cloud or engine behind a Node can be made to run another
// model than the request's, to use another host or credential for it, or to pass over limits and other callers. A route's
// list of models, its caps, and who may use it, would not hold if they passed. A name that ends with '*' stands for all
// that begin so.
var steeringNames = [...]string{
	// Other models. OpenRouter, LiteLLM, Bifrost, Vercel, Anthropic, Groq, Together, LM Studio, MLX.
	"models", "fallbacks", "fallback", "route", "preset", "plugins", "context_window_fallbacks", "content_policy_fallbacks",
	"context_window_fallback_dict", "model_list", "model_group", "router_settings_override", "prompt_id", "compound_custom",
	"safety_model", "draft_model", toolsModel,
	// Other weights on the model. SGLang, vLLM, llama.cpp, Workers AI, TGI, LoRAX, MLX, Together.
	"lora", "lora_path", "lora_request", "adapter_id", "adapter_source", "adapters", "image_loras",
	// Other hosts. OpenRouter, LiteLLM, LocalAI, SGLang, vLLM, TensorRT-LLM, Dynamo, Azure.
	"provider", "provider_options", "custom_llm_provider", "backend", "deployment_id", "specific_deployment", "deployment_url",
	"api_base", "base_url", "api_version", "sagemaker_base_url", "s3_endpoint_url",
	"bootstrap_host", "bootstrap_port", "kv_transfer_params", "ec_transfer_params",
	"disaggregated_params", "nvext", "data_sources",
	// Other credentials. LiteLLM.
	"api_key", "api_token", "organization", "litellm_credential_name", "user_config",
	// What is merged into the request that goes on, or sent with it. LiteLLM.
	"extra_body", "extra_headers", "extra_query", "headers", "litellm_params",
	// Code that runs in the engine. SGLang.
	"custom_logit_processor",
	// Another caller's place or conversation in the engine. SGLang, vLLM, llama.cpp.
	"session_params", "rid", "priority", "id_slot", "data_parallel_rank", "routed_dp_rank", "decode_dp_rank",
	// An answer without a bound, in place of max_tokens. text-generation-webui.
	"auto_max_new_tokens",
	// An answer that comes later, on a path that is not here: the run would end before it began, and cost nothing. OpenAI,
	// vLLM, xAI.
	"background", "deferred",
	// Where LiteLLM sends what it logs, with its own credentials.
	"slack_webhook_url", "humanloop_api_key", "lunary_public_key",
	// Likewise, hosts and credentials of clouds in LiteLLM, and all of TensorZero's. These stand last.
	"langfuse_*", "langsmith_*", "arize_*", "posthog_*", "braintrust_*", "gcs_*", "dd_*",
	"aws_*", "azure_*", "vertex_*", "tensorzero::*",
}

// steeringPrefixes is how many of them end with '*'.
const steeringPrefixes = 11

// toolsModel is the model of a hosted tool, with which OpenAI draws images and Anthropic asks an adviser. OpenRouter's tools have it
// among their parameters.
const toolsModel = "tools.model"

var toolsModelBit = slices.Index(steeringNames[:], toolsModel)

// lookAtTools notes a hosted tool that names a model of its own. What lies deeper in a tool is the schema of its arguments, in which
// a member model of the parameters themselves would be no keyword, and never a text.
func (p *envelopeParser) lookAtTools(tools []byte) {
	for el := arrayElements(tools); el.next(); {
		for m := objectMembers(el.val); m.next(); {
			if isNamed(m.key, "model") && !is(m.val, 'n') && !is(m.val, 'f') {
				p.e.steering.add(toolsModelBit)
			}
			if !isNamed(m.key, "parameters") {
				continue
			}
			for m := objectMembers(m.val); m.next(); {
				if isNamed(m.key, "model") && is(m.val, '"') {
					p.e.steering.add(toolsModelBit)
				}
			}
		}
	}
}

// isNamed reports whether some reader could take a member's name for this one.
func isNamed(key []byte, name string) bool {
	_, match := matches(key, bytes.IndexByte(key, '\\') >= 0, name)
	return match
}

// steeringSet holds a bit for each of steeringNames.
type steeringSet [2]uint64

func (s *steeringSet) add(i int) { s[i/64] |= 1 << (i % 64) }

func (s *steeringSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

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

// CheckSteering refuses a request with a member of [SteeringMembers], unless the name is among the allowed. A member that is
// null says nothing, nor does one that is false. The error is an *Error with
// status 400 whose Param is the member.
func (e *Envelope) CheckSteering(allowed []string) error {
	if e.steering == (steeringSet{}) {
		return nil
	}
	for i, name := range steeringNames {
		if !e.steering.has(i) || slices.Contains(allowed, name) {
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
	e := InvalidRequest(name, fmt.Sprintf("%s is not passed on: with it a provider may use another model, host or credential than this "+
		"gateway chose, or pass over its limits or other callers. Its operator can allow it for a route.", name))
	e.Code = "unsupported_parameter"
	return e
}
