package sim

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// Sizes of embeddings.
const (
	defaultDimensions = 256
	maxDimensions     = 8192
)

// vector returns the unit vector of a text; the same text has the same one everywhere.
func vector(text string, dimensions int) []float32 {
	h := fnv.New64a()
	h.Write([]byte(text))
	r := rand.New(rand.NewPCG(h.Sum64(), uint64(dimensions)))
	v := make([]float32, dimensions)
	var sum float64
	for i := range v {
		f := r.NormFloat64()
		v[i] = float32(f)
		sum += f * f
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	return v
}

// packed is a vector as little-endian floats in base64, OpenAI's encoding_format base64.
func packed(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// single is the plan of an answer that is not made of tokens.
func single(a *ask) plan { return plan{usage: usage{input: a.input}} }

// decodeEmbeddings reads POST /v1/embeddings.
func decodeEmbeddings(_ *exchange, body []byte) (*ask, error) {
	var in struct {
		order
		Model          string  `json:"model"`
		Input          prompts `json:"input"`
		EncodingFormat string  `json:"encoding_format"`
		Dimensions     *int    `json:"dimensions"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if len(in.Input) == 0 {
		return nil, &requestError{"input", "Missing required parameter: 'input'."}
	}
	dimensions, err := dimensionsOf(in.Dimensions)
	if err != nil {
		return nil, err
	}
	a := &ask{model: in.Model, orders: in.list(), n: 1, text: in.Input[0], input: countTokens(in.Input.bytes())}
	a.serve = func(x *exchange, a *ask) error {
		p := single(a)
		if err := x.compute(&p); err != nil {
			return err
		}
		data := make([]any, len(in.Input))
		for i, text := range in.Input {
			item := map[string]any{"object": "embedding", "index": i}
			if v := vector(text, dimensions); in.EncodingFormat == "base64" {
				item["embedding"] = packed(v)
			} else {
				item["embedding"] = v
			}
			data[i] = item
		}
		return x.deliver("application/json", marshal(map[string]any{
			"object": "list", "data": data, "model": a.model,
			"usage": map[string]int{"prompt_tokens": a.input, "total_tokens": a.input},
		}))
	}
	return a, nil
}

func dimensionsOf(given *int) (int, error) {
	if given == nil {
		return defaultDimensions, nil
	}
	if *given < 1 || *given > maxDimensions {
		return 0, &requestError{"dimensions", "Invalid 'dimensions': must be 1 to 8192."}
	}
	return *given, nil
}

// document is a document to rank: a string or an object with a text.
type document string

func (d *document) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*d = document(s)
		return nil
	}
	var o struct {
		Text string `json:"text"`
	}
	err := json.Unmarshal(b, &o)
	*d = document(o.Text)
	return err
}

// decodeRerank reads POST /v1/rerank, /rerank and /v2/rerank.
func decodeRerank(x *exchange, body []byte) (*ask, error) {
	var in struct {
		order
		Model           string     `json:"model"`
		Query           string     `json:"query"`
		Documents       []document `json:"documents"`
		TopN            *int       `json:"top_n"`
		ReturnDocuments *bool      `json:"return_documents"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if len(in.Documents) == 0 {
		return nil, &requestError{"documents", "Missing required parameter: 'documents'."}
	}
	cohere := x.r.URL.Path == "/v2/rerank"
	size := len(in.Query)
	for _, d := range in.Documents {
		size += len(d)
	}
	a := &ask{model: in.Model, orders: in.list(), n: 1, text: in.Query, input: countTokens(size)}
	a.serve = func(x *exchange, a *ask) error {
		p := single(a)
		if err := x.compute(&p); err != nil {
			return err
		}
		results := rank(a.text, in.Documents)
		if in.TopN != nil && *in.TopN >= 0 {
			results = results[:min(len(results), *in.TopN)]
		}
		list := make([]any, len(results))
		for i, r := range results {
			item := map[string]any{"index": r.index, "relevance_score": r.score}
			if !cohere && (in.ReturnDocuments == nil || *in.ReturnDocuments) {
				item["document"] = map[string]string{"text": string(in.Documents[r.index])}
			}
			list[i] = item
		}
		out := map[string]any{"id": x.id("rerank-"), "results": list}
		if cohere {
			out["meta"] = map[string]any{"api_version": map[string]string{"version": "2"}, "billed_units": map[string]int{"search_units": 1}}
		} else {
			out["model"], out["usage"] = a.model, map[string]int{"prompt_tokens": a.input, "total_tokens": a.input}
		}
		return x.deliver("application/json", marshal(out))
	}
	return a, nil
}

type ranked struct {
	index int
	score float64
}

// rank orders documents by the share of the query's words that they hold.
func rank(query string, documents []document) []ranked {
	words := strings.Fields(strings.ToLower(query))
	out := make([]ranked, len(documents))
	for i, d := range documents {
		text, hits := strings.ToLower(string(d)), 0
		for _, w := range words {
			if strings.Contains(text, w) {
				hits++
			}
		}
		out[i] = ranked{i, 0.05 + 0.9*float64(hits)/float64(max(1, len(words)))}
	}
	slices.SortStableFunc(out, func(a, b ranked) int { return cmp.Compare(b.score, a.score) })
	return out
}

var moderationCategories = []string{
	"harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm",
	"self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors", "violence", "violence/graphic",
}

// decodeModeration reads POST /v1/moderations. A text with the word "flag" is flagged for all.
func decodeModeration(_ *exchange, body []byte) (*ask, error) {
	var in struct {
		order
		Model string  `json:"model"`
		Input prompts `json:"input"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if len(in.Input) == 0 {
		return nil, &requestError{"input", "Missing required parameter: 'input'."}
	}
	a := &ask{model: in.Model, anyModel: true, orders: in.list(), n: 1, text: in.Input[0], input: countTokens(in.Input.bytes())}
	a.serve = func(x *exchange, a *ask) error {
		p := single(a)
		if err := x.compute(&p); err != nil {
			return err
		}
		if a.model == "" {
			a.model = "omni-moderation-latest"
		}
		results := make([]any, len(in.Input))
		for i, text := range in.Input {
			results[i] = moderate(text)
		}
		return x.deliver("application/json", marshal(map[string]any{"id": x.id("modr-"), "model": a.model, "results": results}))
	}
	return a, nil
}

func moderate(text string) map[string]any {
	flagged := strings.Contains(strings.ToLower(text), "flag")
	categories, scores, inputs := map[string]bool{}, map[string]float64{}, map[string][]string{}
	for _, c := range moderationCategories {
		categories[c], scores[c], inputs[c] = flagged, 0.01, []string{"text"}
		if flagged {
			scores[c] = 0.99
		}
	}
	return map[string]any{
		"flagged": flagged, "categories": categories, "category_scores": scores, "category_applied_input_types": inputs,
	}
}
