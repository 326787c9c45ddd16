package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"iop/openai"
)

// The members of which readings.py and readings.mjs say what each reader makes of them.
var (
	readCounts  = []string{"n", "best_of", "n_cmpl", "num_return_sequences"}
	readLengths = []string{
		"max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "num_predict", "max_new_tokens", "max_tokens_to_sample",
		"max_gen_len", "max_length", "tokens_to_generate",
	}
)

// jsonReading is what one reader makes of a body, by member.
type jsonReading = map[string]any

// bodyRead is one body as the Edge forwards it, with what the Edge thinks that it says.
type bodyRead struct {
	body   []byte
	op     openai.OpID
	env    openai.Envelope
	capped bool
	length openai.Length
}

const (
	readLengthCap = 100
	readCountCap  = 3
	generated     = 2_000
)

// TestParsersAgree: of each body that the Edge takes, every parser that takes what the Edge sends on makes the same of the
// members that decide something, and what the Edge makes of it. The parsers are those of providers: Python's json (of bytes, of
// text with bad bytes dropped or replaced, the first of two names or the last, names folded in several ways), orjson, pydantic's
// and jiter, a pydantic model as FastAPI fills it, JavaScript's JSON.parse and Go's encoding/json.
//
// That the readers do differ where the Edge refuses is what TestParsersDisagree shows.
func TestParsersAgree(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(10, 3))
	var taken []bodyRead
	refused := 0
	for i := range generated {
		body := randomBody(rng)
		if i < len(readSeeds) {
			body = []byte(readSeeds[i])
		}
		before := len(taken)
		op := []openai.OpID{openai.OpChatCompletions, openai.OpOllamaChat}[i%2]
		if taken = appendForwarded(taken, body, op); len(taken) == before {
			refused++
		}
	}
	if len(taken) < generated/10 || refused < generated/10 {
		t.Fatalf("%d bodies taken, %d refused: the generator is of no use", len(taken), refused)
	}
	bodies := make([][]byte, len(taken))
	for i := range taken {
		bodies[i] = taken[i].body
	}
	failures := 0
	for i, byReader := range readBodies(t, bodies) {
		for _, fault := range taken[i].faults(byReader) {
			if failures++; failures < 20 {
				t.Errorf("%q: %s", taken[i].body, fault)
			}
		}
	}
	t.Logf("%d forwarded bodies, %d refused", len(taken), refused)
}

// TestParsersDisagree: of what the Edge refuses there are two readings, so that the test above would see it pass.
func TestParsersDisagree(t *testing.T) {
	t.Parallel()
	attacks := []string{
		"{\"model\":\"a\",\"mo\xffdel\":\"b\"}", `{"model":"a","model":"b"}`, `{"model":"a","MODEL":"b"}`, `{"model":"a","mod\ud800el":"b"}`,
		`{"model":"a","model\u0000":"b"}`, `{"model":"a","mo\ud83d\ude00del":"b"}`, `{"model":"a","\uff4dodel":"b"}`, `{"model":"a","\ufb05ream":true}`,
		`{"model":"a","n":"2"}`, `{"model":"a","n":2.5}`, `{"model":"a","max_tokens":1,"Max_Tokens":1000}`, `{"model":"a","max_tokens":1,"maxTokens":1000}`,
		`{"model":"a","stream":"false"}`, `{"model":"a","options":{"num_predict":1,"num_predict":1000}}`, `{"model":"a","messages":[],"messages":[1]}`,
		`{"model":"a","metadata":{"session_id":"a","session_id":"b"}}`, `{"model":"a","Models":["b"]}`, `{"model":"a","max_to\u212aens":5}`,
		`{"model":"a","max_tokens":1,"__proto__":{"max_completion_tokens":1000}}`, `{"model":"a","__pr\u006fto__":{"fallbacks":["b"]}}`,
		`{"model":"a","options":{"__proto__":{"num_predict":1000}}}`,
	}
	bodies := make([][]byte, len(attacks))
	for i, a := range attacks {
		bodies[i] = []byte(a)
		if e, err := openai.ParseEnvelope(bodies[i]); err == nil && e.CheckSteering(openai.OpChatCompletions, nil) == nil {
			t.Errorf("%q passed", a)
		}
	}
	for i, byReader := range readBodies(t, bodies) {
		if len(differing(byReader)) == 0 && !slices.Contains([]string{attacks[8], attacks[9]}, attacks[i]) {
			t.Errorf("%q: all readers agree: %v", attacks[i], byReader)
		}
	}
}

// appendForwarded appends what the Edge sends on of a body, with and without a route's caps; nothing if it refuses it.
func appendForwarded(list []bodyRead, body []byte, op openai.OpID) []bodyRead {
	e, err := openai.ParseEnvelope(body)
	if err != nil || e.Model == "" || e.CheckSteering(op, nil) != nil {
		return list
	}
	for _, caps := range [][]openai.ParameterCap{nil, {{Name: "max_tokens", Max: readLengthCap}, {Name: "n", Max: readCountCap}}} {
		edits, err := e.Plan(body, op, nil, caps)
		if err != nil {
			continue
		}
		out := e.Rewrite(body, openai.RewriteSpec{Model: "org/name:7b", IncludeUsage: true, Edits: edits})
		list = append(list, bodyRead{out, op, e, caps != nil, e.Length(op, nil, caps)})
	}
	return list
}

// faults compares what the readers make of the body with each other, and with what the Edge makes of it.
func (b *bodyRead) faults(byReader map[string]jsonReading) []string {
	faults := differing(byReader)
	if byReader["json"] == nil {
		faults = append(faults, "Python does not take it")
	}
	r := byReader["json"]
	want := jsonReading{
		"model": "org/name:7b", "stream": b.env.Stream, "include_usage": b.env.Stream || b.env.IncludeUsage,
		"user": orNil(b.env.User), "session_id": orNil(b.env.SessionID), "prompt_cache_key": orNil(b.env.PromptCacheKey),
	}
	for name, v := range want {
		if got := r[name]; got != v && !(got == "" && v == nil) {
			faults = append(faults, fmt.Sprintf("%s is %v for the readers, %v here", name, got, v))
		}
	}
	choices, longest := 1.0, 0.0
	for _, name := range readCounts {
		if v, ok := r[name].(float64); ok {
			choices = max(choices, v)
		}
	}
	for _, name := range append([]string{"options"}, readLengths...) {
		v, ok := r[name].(float64)
		if whole := v >= 1 && v == math.Trunc(v); ok && whole {
			longest = max(longest, v)
		} else if ok && b.capped {
			faults = append(faults, fmt.Sprintf("%s is %v under a cap", name, v))
		}
	}
	if float64(b.length.Choices) != min(choices, 1<<20) || float64(b.length.Tokens) != longest {
		faults = append(faults, fmt.Sprintf("%v answers of %v tokens for the readers, %+v here", choices, longest, b.length))
	}
	named := r["max_tokens"] != nil && (b.op != openai.OpOllamaChat || r["options"] != nil)
	if b.capped && (!named || longest > readLengthCap || choices > readCountCap) {
		faults = append(faults, fmt.Sprintf("the cap does not hold: %v", r))
	}
	return faults
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// differing says where two readers differ.
func differing(byReader map[string]jsonReading) (faults []string) {
	first := byReader["json"]
	for name, r := range byReader {
		if first == nil {
			first = r
		}
		for member, v := range r {
			if want, ok := first[member]; ok && !reflect.DeepEqual(v, want) && !(v == nil && want == "") {
				faults = append(faults, fmt.Sprintf("%s is %v for %s, %v for json", member, v, name, want))
			}
		}
	}
	slices.Sort(faults)
	return faults
}

// readBodies has all readers read the bodies.
func readBodies(t *testing.T, bodies [][]byte) []map[string]jsonReading {
	t.Helper()
	sdk := sdkDir(t)
	steering := openai.SteeringMembers()
	tables, err := json.Marshal(map[string][]string{"steering": steering, "counts": readCounts, "lengths": readLengths})
	if err != nil {
		t.Fatal(err)
	}
	in := append(tables, '\n')
	for _, b := range bodies {
		in = append(base64.StdEncoding.AppendEncode(in, b), '\n')
	}
	all := make([]map[string]jsonReading, len(bodies))
	for i, b := range bodies {
		all[i] = readJSONInGo(b)
	}
	for _, command := range [][]string{
		{filepath.Join(sdk, "clients", "bin", "python"), "sdk/python/readings.py"}, {"node", "sdk/node/readings.mjs"},
	} {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = append(cleanEnv(), "PYTHONDONTWRITEBYTECODE=1")
		cmd.Stdin = bytes.NewReader(in)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command[1], err, tail(stderr.String(), 4<<10))
		}
		lines := bufio.NewScanner(bytes.NewReader(out))
		lines.Buffer(nil, 1<<20)
		n := 0
		for ; lines.Scan() && n < len(all); n++ {
			var byReader map[string]jsonReading
			if err := json.Unmarshal(lines.Bytes(), &byReader); err != nil {
				t.Fatalf("%s printed %q: %v", command[1], lines.Bytes(), err)
			}
			maps.Copy(all[n], byReader)
		}
		if n != len(bodies) {
			t.Fatalf("%s read %d bodies of %d", command[1], n, len(bodies))
		}
	}
	return all
}

// goRequest is a request as a provider in Go declares it, such as Ollama.
type goRequest struct {
	Model              string           `json:"model"`
	Stream             *bool            `json:"stream"`
	StreamOptions      *goStreamOptions `json:"stream_options"`
	User               *string          `json:"user"`
	SessionID          *string          `json:"session_id"`
	PromptCacheKey     *string          `json:"prompt_cache_key"`
	N                  *float64         `json:"n"`
	BestOf             *float64         `json:"best_of"`
	MaxTokens          *float64         `json:"max_tokens"`
	MaxOutputTokens    *float64         `json:"max_output_tokens"`
	MaxCompletionToken *float64         `json:"max_completion_tokens"`
	NPredict           *float64         `json:"n_predict"`
	Options            *goOptions       `json:"options"`
}

type goStreamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type goOptions struct {
	NumPredict *float64 `json:"num_predict"`
}

// readJSONInGo reads a body with encoding/json, into a struct and into a map.
func readJSONInGo(body []byte) map[string]jsonReading {
	all := map[string]jsonReading{}
	var r goRequest
	if json.Unmarshal(body, &r) == nil {
		got := jsonReading{
			"model": r.Model, "stream": r.Stream != nil && *r.Stream, "include_usage": r.StreamOptions != nil && r.StreamOptions.IncludeUsage,
			"user": plain(r.User), "session_id": plain(r.SessionID), "prompt_cache_key": plain(r.PromptCacheKey),
			"n": clipped(r.N), "best_of": clipped(r.BestOf), "max_tokens": clipped(r.MaxTokens), "n_predict": clipped(r.NPredict),
			"max_output_tokens": clipped(r.MaxOutputTokens), "max_completion_tokens": clipped(r.MaxCompletionToken), "options": nil,
		}
		if r.Options != nil {
			got["options"] = clipped(r.Options.NumPredict)
		}
		all["go struct"] = got
	}
	var m map[string]any
	if json.Unmarshal(body, &m) == nil && m != nil {
		got := jsonReading{"model": m["model"], "user": m["user"], "session_id": m["session_id"], "prompt_cache_key": m["prompt_cache_key"]}
		for _, name := range slices.Concat(readCounts, readLengths) {
			got[name] = m[name]
			if v, ok := m[name].(float64); ok {
				got[name] = clipped(&v)
			}
		}
		all["go map"] = got
	}
	return all
}

func plain(s *string) any {
	if s == nil {
		return nil
	}
	return *s
}

// clipped is a number within the bounds that the scripts have too.
func clipped(v *float64) any {
	if v == nil {
		return nil
	}
	return max(min(*v, 1<<40), -1<<40)
}

// readSeeds are what common clients send, and what was found by attack.
var readSeeds = []string{
	`{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":false},"max_completion_tokens":500,"n":1,"user":"u"}`,
	`{"model":"m","messages":[],"max_tokens":null,"max_completion_tokens":7,"n":null,"stop":null,"tools":null,"metadata":{"session_id":"s"}}`,
	`{"model":"m","prompt":["a","b"],"n":2,"best_of":4,"max_tokens":16,"logprobs":null,"suffix":null}`,
	`{"model":"m","messages":[],"options":{"num_predict":-1,"num_ctx":4096},"stream":false,"keep_alive":"5m"}`,
	`{"model":"m","system":"x","messages":[],"max_tokens":1024,"metadata":{"user_id":"u"},"thinking":{"type":"enabled","budget_tokens":1024}}`,
	`{"model":"m","messages":[{"role":"user","content":"half an emoji: \ud83d"}],"max_tokens":1e2}`,
	`{"model":"m","max_tokens":0.5,"n_predict":-0.0,"max_new_tokens":1e400,"max_gen_len":99999999999999999999}`,
}
