package openai

import (
	"fmt"
	"slices"
	"strings"
)

// steeringNames are the root members with which a known gateway, cloud or engine behind a Node can be made to run another
// model than the request's, to use another host or credential for it, or to pass over limits and other callers. A route's
// list of models, its caps, and who may use it, would not hold if they passed. A name that ends with '*' stands for all
// that begin so.
var steeringNames = [...]string{
	// Other models. OpenRouter, LiteLLM, Bifrost, Vercel, Anthropic, Groq, Together, LM Studio, MLX.
	"models", "fallbacks", "fallback", "route", "preset", "plugins", "context_window_fallbacks", "content_policy_fallbacks",
	"context_window_fallback_dict", "model_list", "model_group", "router_settings_override", "prompt_id", "compound_custom",
	"safety_model", "draft_model", toolsModel, anyModel,
	// Among the deployments of one name, and among configurations with models of their own. LiteLLM, NeMo Guardrails.
	"tags", "config_id", "config_ids", "guardrails", "litellm_metadata",
	"allowed_model_region", "region_name",
	// Members of the request that are not sent on, a capped length among them. LiteLLM.
	"additional_drop_params",
	// Other weights on the model. SGLang, vLLM, llama.cpp, Workers AI, TGI, LoRAX, MLX, Together.
	"lora", "lora_path", "lora_request", "adapter_id", "adapter_source", "adapters", "image_loras",
	// Other hosts. OpenRouter, LiteLLM, LocalAI, SGLang, vLLM, TensorRT-LLM, Dynamo, Azure.
	"provider", "provider_options", "custom_llm_provider", "backend", "deployment_id", "specific_deployment", "deployment_url",
	"api_base", "base_url", "api_version", "sagemaker_base_url", "s3_endpoint_url",
	"bootstrap_host", "bootstrap_port", "kv_transfer_params", "ec_transfer_params",
	"disaggregated_params", "nvext", "data_sources",
	// Other credentials, or another account that pays. LiteLLM, Anthropic.
	"api_key", "api_token", "organization", "litellm_credential_name", "user_config",
	"workspace_id", "billing_policy", "fallback_credit_token",
	// What is merged into the request that goes on, or sent with it. LiteLLM.
	"extra_body", "extra_headers", "extra_query", "headers", "litellm_params",
	// Code that runs in the engine, its arguments, and what else goes to its plugins, kv_transfer_params among it. SGLang, vLLM.
	"custom_logit_processor", "custom_params", "logits_processors", "vllm_xargs",
	// Another caller's place, conversation or answer in the engine. SGLang, vLLM, llama.cpp, NeMo Guardrails, transformers.
	"session_params", "rid", "request_id", "priority", "id_slot", "slot_id", "data_parallel_rank", "routed_dp_rank", "decode_dp_rank",
	"thread_id",
	// An answer without a bound, in place of max_tokens: text-generation-webui. Or many of them: OpenAI's subagents.
	"auto_max_new_tokens", "multi_agent",
	// The same request time and again, each time until the client's own timeout: LiteLLM.
	"num_retries", "max_retries",
	// An answer that comes later, on a path that is not here: the run would end before it began, and cost nothing. OpenAI,
	// vLLM, xAI.
	"background", "deferred",
	// Where LiteLLM sends what it logs, with its own credentials.
	"slack_webhook_url", "humanloop_api_key", "lunary_public_key",
	// Likewise, hosts and credentials of clouds in LiteLLM, what makes it take a fallback, and all of TensorZero's. These stand last.
	"langfuse_*", "langsmith_*", "arize_*", "posthog_*", "braintrust_*", "gcs_*", "dd_*", "mock_testing_*",
	"aws_*", "azure_*", "vertex_*", "tensorzero::*",
}

// steeringPrefixes is how many of them end with '*'.
const steeringPrefixes = 12

// toolsModel is the model of a hosted tool, with which OpenAI draws images and Anthropic asks an adviser. OpenRouter's tools have it
// among their parameters, or run models without one (see runsModels).
const toolsModel = "tools.model"

var (
	toolsModelBit = slices.Index(steeringNames[:], toolsModel)
	anyModelBit   = slices.Index(steeringNames[:], anyModel)
)

// isNamed reports whether some reader could take a member's name for this one.
func isNamed(key []byte, escaped bool, name string) bool {
	_, match := matches(key, escaped, name)
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
// stands for all that begin so, "*model" for all that end in model, models, model_id and the like, at any depth.
func SteeringMembers() []string { return slices.Clone(steeringNames[:]) }

// CheckSteering refuses a request with a member of [SteeringMembers], unless the name is among the allowed, or means something
// else in that operation: images have a background. A member that is null says nothing, nor does one that is false. The error is
// an *Error with status 400 whose Param is the member.
func (e *Envelope) CheckSteering(op OpID, allowed []string) error {
	if e.steering == (steeringSet{}) {
		return nil
	}
	for i, name := range steeringNames {
		if !e.steering.has(i) || slices.Contains(allowed, name) || knownMembers[name].ops.Has(op) {
			continue
		}
		return steeringError(name, e.otherModel)
	}
	return nil
}

// CheckSteering is [Envelope.CheckSteering] for a form, of which an empty field says nothing.
func (f *Form) CheckSteering(op OpID, allowed []string) error {
	for i := range f.parts {
		part := &f.parts[i]
		base, indices := cutIndices(part.name)
		named, _ := fieldOf([]byte(foldName(base)), false)
		if named < fieldSteering && (named == fieldNone && namesModel([]byte(base), false) || namesModel([]byte(strings.TrimRight(indices, "[]")), false)) {
			named = fieldSteering + field(anyModelBit)
		}
		if knownMembers[named.String()].ops.Has(op) {
			continue
		}
		if named >= fieldSteering && (part.file || len(part.content) > 0) && !slices.Contains(allowed, named.String()) {
			return steeringError(named.String(), part.name)
		}
	}
	return nil
}

// steeringError refuses a member of steeringNames; at is the client's name of it where the name is anyModel.
func steeringError(name, at string) *Error {
	what := name
	if name == anyModel {
		what = fmt.Sprintf("A second member that names a model (%q)", at)
	}
	e := InvalidRequest(name, fmt.Sprintf("%s is not forwarded: it could make the provider use another model, host or credential than this "+
		"gateway chose, or bypass its limits or other callers. The operator can allow it for a route.", what))
	e.Code = "unsupported_parameter"
	return e
}
