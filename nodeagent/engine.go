package nodeagent

import (
	"slices"
	"strings"
	"time"

	"iop/openai"
)

// Engine is what kind of server a provider is. It decides how the Node asks for capacity and models; the protocol that
// it speaks with runs is its Adapter.
type Engine string

// The engines that the Node knows. OpenAIEngine and AnthropicEngine also stand for any server that speaks that
// protocol and says no more of itself.
const (
	OpenAIEngine    Engine = "openai"
	AnthropicEngine Engine = "anthropic"
	OllamaEngine    Engine = "ollama"
	VLLMEngine      Engine = "vllm"
	LlamaCPPEngine  Engine = "llamacpp"
	LMStudioEngine  Engine = "lmstudio"
	SGLangEngine    Engine = "sglang"
)

// engineTraits is what the Node knows of an engine beforehand.
type engineTraits struct {
	engine Engine
	// adapter is the protocol that runs speak with it: openai, ollama or anthropic.
	adapter string
	// capacity is used where neither the operator nor the engine names one. It is what the engine runs at once without
	// losing much, so that the queue stands at the Edge, where it is fair, and not inside the engine.
	capacity int
	// port is where the engine listens unless told otherwise; 0 if it is not searched for.
	port string
	// poll is how often it is looked at. Where models come and go while the engine runs, a change must be seen within
	// 2 s; where the list is that of the engine's start, the look is for its health alone.
	poll time.Duration
	// closesStreams: the engine closes the connection after a stream, whatever it announced. A request that is sent
	// down it meanwhile would be lost.
	closesStreams bool
	// operations are what it has, for where that can't be found out. 0 if nobody knows.
	operations openai.OpSet
}

// What engines have, beside what each adds.
var (
	chatOperations  = setOf(openai.OpChatCompletions, openai.OpCompletions, openai.OpEmbeddings)
	modelOperations = chatOperations | setOf(openai.OpResponses, openai.OpRerank, openai.OpRerankRoot, openai.OpRerankV2, openai.OpTokenize, openai.OpDetokenize)
)

// engines is the table of engines; the order is that of discovery.
var engines = []engineTraits{
	{engine: OllamaEngine, adapter: "ollama", capacity: 1, port: "11434", poll: 2 * time.Second,
		operations: chatOperations | setOf(openai.OpOllamaChat, openai.OpOllamaGenerate, openai.OpOllamaEmbed, openai.OpOllamaEmbeddings)},
	{engine: VLLMEngine, adapter: "openai", capacity: 128, port: "8000", poll: 5 * time.Second, operations: modelOperations},
	{engine: LlamaCPPEngine, adapter: "openai", capacity: 4, port: "8080", poll: 5 * time.Second, closesStreams: true,
		operations: chatOperations | setOf(openai.OpTokenize, openai.OpDetokenize)},
	{engine: LMStudioEngine, adapter: "openai", capacity: 4, port: "1234", poll: 2 * time.Second, operations: chatOperations | setOf(openai.OpResponses)},
	{engine: SGLangEngine, adapter: "openai", capacity: 128, port: "30000", poll: 5 * time.Second, operations: chatOperations},
	{engine: OpenAIEngine, adapter: "openai", capacity: 32, poll: 2 * time.Second,
		operations: chatOperations | setOf(openai.OpResponses, openai.OpModerations, openai.OpImagesGenerations, openai.OpImagesEdits,
			openai.OpAudioSpeech, openai.OpAudioTranscriptions, openai.OpAudioTranslations)},
	{engine: AnthropicEngine, adapter: "anthropic", capacity: 32, poll: 2 * time.Second, operations: setOf(openai.OpMessages, openai.OpCountTokens)},
}

func (e Engine) traits() engineTraits {
	i := slices.IndexFunc(engines, func(t engineTraits) bool { return t.engine == e })
	if i < 0 {
		return engineTraits{engine: e, adapter: "openai", capacity: 1, poll: 2 * time.Second}
	}
	return engines[i]
}

func (e Engine) valid() bool {
	return slices.ContainsFunc(engines, func(t engineTraits) bool { return t.engine == e })
}

func engineNames() string {
	names := make([]string, len(engines))
	for i, t := range engines {
		names[i] = string(t.engine)
	}
	return strings.Join(names, ", ")
}
