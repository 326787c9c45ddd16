package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of the knobs: generous for a test, small enough that a typing error does not take the machine down.
const (
	maxTokens    = 10_000_000
	maxKnobBytes = 256 << 20
)

// unset marks a number that was not given where zero means something.
const unset = -1

// knobs are the orders for one answer. Make them with newKnobs. knobTable says what each means.
type knobs struct {
	tokens     int // unset: the script's own length
	chunkBytes int
	text       string
	reasoning  int // unset: what the model's name says
	tools      int // unset: what the request says
	cached     int
	ttft       time.Duration // unset: the configuration's, on inference requests
	gap        time.Duration // between two tokens
	headers    string        // early: before ttft

	stallAfter int
	stall      time.Duration
	hangAfter  int // unset: never
	fault      string
	after      int // where a fault in mid-answer strikes

	status     int
	retryAfter string
	failFirst  int    // 0: not given
	order      string // the orders as they were written, for failFirst
	errorShape string
	redirect   string
	usage      string

	bigEvent     int
	bigResponse  int
	split        int
	crlf         bool
	crSplit      bool
	cr           bool
	noSpace      bool
	bom          bool
	ids          bool
	retryField   bool
	comments     bool
	contentType  string
	done         string
	trailing     bool
	keepOpen     time.Duration
	hugeHeaders  int
	slowRead     int // bytes a second; 0: as fast as it comes
	respondEarly bool
	earlyHints   bool
	echoHeaders  bool
	leak         bool
	ignoreCancel bool
	lacks        string
	anyPath      bool
	gzip         bool

	path  string // default knobs only: which requests
	times int    // default knobs only: how many requests; 0: all
}

func newKnobs(c Config) knobs {
	k := knobs{tokens: unset, reasoning: unset, tools: unset, hangAfter: unset, cached: unset, ttft: unset, after: 3}
	if c.TokensPerSecond > 0 {
		k.gap = time.Duration(float64(time.Second) / c.TokensPerSecond)
	}
	return k
}

// knob is one key that a request or /sim/config may set.
type knob struct {
	name string
	help string
	set  func(k *knobs, value string) error // value is empty where the key stood alone
}

var knobTable = []knob{
	{"tokens", "N: how many tokens the answer has", number(func(k *knobs) *int { return &k.tokens }, 0, maxTokens)},
	{"chunk_bytes", "N: pad each token's text to about N bytes", size(func(k *knobs) *int { return &k.chunkBytes }, 0)},
	{"text", "ascii, cjk, emoji, mix, or stamp (each token is the time of its writing, in Unix nanoseconds)", choice(func(k *knobs) *string { return &k.text }, "ascii", "cjk", "emoji", "mix", "stamp")},
	{"reasoning", "N: reasoning tokens before the answer", number(func(k *knobs) *int { return &k.reasoning }, 0, maxTokens)},
	{"tools", "N: call the first N tools; 0 calls none", number(func(k *knobs) *int { return &k.tools }, 0, 128)},
	{"cached", "N: report N cached prompt tokens", number(func(k *knobs) *int { return &k.cached }, 0, maxTokens)},
	{"ttft", "D: time to first token, e.g. 250ms", duration(func(k *knobs) *time.Duration { return &k.ttft })},
	{"itl", "D: time between two tokens", duration(func(k *knobs) *time.Duration { return &k.gap })},
	{"tps", "R: tokens per second; 0 is as fast as it goes", setRate},
	{"headers", "early: send the stream's head at once, before ttft", choice(func(k *knobs) *string { return &k.headers }, "early", "normal")},
	{"stall_after", "N: fall silent after N tokens, for `stall`", number(func(k *knobs) *int { return &k.stallAfter }, 0, maxTokens)},
	{"stall", "D: how long to fall silent", duration(func(k *knobs) *time.Duration { return &k.stall })},
	{"hang_after", "N: fall silent after N tokens, for good", number(func(k *knobs) *int { return &k.hangAfter }, 0, maxTokens)},
	{"fault", "one of the faults below; where it strikes in mid-answer, `after` says when", nil},
	{"after", "N: how many tokens come before a fault in mid-answer (3)", number(func(k *knobs) *int { return &k.after }, 0, maxTokens)},
	{"status", "NNN: answer with this HTTP status and an error", number(func(k *knobs) *int { return &k.status }, 200, 599)},
	{"retry_after", "S: the Retry-After of that error", text(func(k *knobs) *string { return &k.retryAfter })},
	{"fail_first", "N: only the first N requests with this same order fail, with `status` or else as the server was started to (500)", number(func(k *knobs) *int { return &k.failFirst }, 1, maxTokens)},
	{"error_shape", "openai, string, detail, flat, html, empty, ollama, anthropic: the body of errors", choice(func(k *knobs) *string { return &k.errorShape }, "openai", "string", "detail", "flat", "html", "empty", "ollama", "anthropic")},
	{"redirect", "[URL]: answer 307 to URL, or to /redirected of this server", setRedirect},
	{"usage", "never, always, refuse (400 to stream_options), finish (in the chunk with finish_reason)", choice(func(k *knobs) *string { return &k.usage }, "never", "always", "refuse", "finish")},
	{"bigevent", "BYTES: one event of that size", size(func(k *knobs) *int { return &k.bigEvent }, 1<<20)},
	{"big_response", "BYTES: pad the text of a whole answer to that size", size(func(k *knobs) *int { return &k.bigResponse }, 1<<20)},
	{"split", "N: write a stream N bytes at a time, whatever they are", number(func(k *knobs) *int { return &k.split }, 1, 1<<20)},
	{"crlf", "end lines with CR LF", toggle(func(k *knobs) *bool { return &k.crlf })},
	{"cr_split", "end lines with CR LF, each in two writes", toggle(func(k *knobs) *bool { return &k.crSplit })},
	{"cr", "end lines with CR alone", toggle(func(k *knobs) *bool { return &k.cr })},
	{"nospace", "`data:{` without the space", toggle(func(k *knobs) *bool { return &k.noSpace })},
	{"bom", "begin the stream with a byte order mark", toggle(func(k *knobs) *bool { return &k.bom })},
	{"ids", "an `id:` line on every event", toggle(func(k *knobs) *bool { return &k.ids })},
	{"retry_field", "begin the stream with a `retry:` line", toggle(func(k *knobs) *bool { return &k.retryField })},
	{"comments", "a comment before every event", toggle(func(k *knobs) *bool { return &k.comments })},
	{"content_type", "none, charset, json, ndjson, html, or a type as it stands: the answer's Content-Type", text(func(k *knobs) *string { return &k.contentType })},
	{"done", "normal, none, unterminated (no blank line), space (a trailing space): the [DONE] line", choice(func(k *knobs) *string { return &k.done }, "normal", "none", "unterminated", "space")},
	{"trailing_after_done", "one more chunk after [DONE]", toggle(func(k *knobs) *bool { return &k.trailing })},
	{"keep_open_after_done", "D: end the body D later than its last byte", duration(func(k *knobs) *time.Duration { return &k.keepOpen })},
	{"huge_headers", "BYTES of response headers", size(func(k *knobs) *int { return &k.hugeHeaders }, 64<<10)},
	{"slow_read", "BYTES a second: read the request body slowly (defaults and X-Sim only)", size(func(k *knobs) *int { return &k.slowRead }, 64<<10)},
	{"respond_early", "answer without reading the body (defaults and X-Sim only)", toggle(func(k *knobs) *bool { return &k.respondEarly })},
	{"early_hints", "a 103 first, and trailers; both repeat the request's credentials", toggle(func(k *knobs) *bool { return &k.earlyHints })},
	{"echo_headers", "the text of the answer is the request's headers", toggle(func(k *knobs) *bool { return &k.echoHeaders })},
	{"leak", "repeat the request's credentials in headers and text", toggle(func(k *knobs) *bool { return &k.leak })},
	{"ignore_cancel", "generate to the end when the client has gone", toggle(func(k *knobs) *bool { return &k.ignoreCancel })},
	{"gzip", "compress the answer if the request allows it", toggle(func(k *knobs) *bool { return &k.gzip })},
	{"lacks", "PATHS, with | between them: paths that the engine does not have", text(func(k *knobs) *string { return &k.lacks })},
	{"any_path", "answer 200 to paths that the engine does not have, as LM Studio does (with path=*)", toggle(func(k *knobs) *bool { return &k.anyPath })},
	{"path", "defaults only: `*` is every request, else a prefix of the path; without it, inference only", text(func(k *knobs) *string { return &k.path })},
	{"times", "defaults only, N: they last for N requests", number(func(k *knobs) *int { return &k.times }, 1, maxTokens)},
}

// The faults.
const (
	faultHang       = "hang"
	faultClose      = "close"
	faultReset      = "reset"
	faultMidClose   = "midclose"
	faultMidReset   = "midreset"
	faultMidAbort   = "midabort"
	faultErrorFirst = "error_event_first"
	faultErrorMid   = "error_event_mid"
	faultLlamaCPP   = "llamacpp_error"
	faultEmpty      = "empty200"
	faultDie        = "die"
	faultMalformed  = "malformed"
	faultOverflow   = "overflow"
)

var faultHelp = [][2]string{
	{faultHang, "never answer, not even the head"},
	{faultClose, "close the connection before the head"},
	{faultReset, "reset the connection before the head (RST)"},
	{faultMidClose, "end the body cleanly after `after` tokens: no finish_reason, no [DONE]"},
	{faultMidReset, "reset the connection after `after` tokens (RST inside the body)"},
	{faultMidAbort, "close the connection after `after` tokens, without the body's terminator"},
	{faultErrorFirst, "200, and the first event is an error"},
	{faultErrorMid, "an error event after `after` tokens, and the end as vLLM does it"},
	{faultLlamaCPP, "after `after` tokens an `error:` field with an integer code, then [DONE]"},
	{faultEmpty, "200 with an empty body"},
	{faultDie, "after `after` tokens the engine dies as the flavour does: vllm and sglang with an error event, llamacpp with RST, ollama with a clean end (/api: an error line), others with a cut body"},
	{faultMalformed, "after `after` tokens an event or a line that is no JSON, then the end; half of a whole answer"},
	{faultOverflow, "400: the prompt does not fit the context, in the words of the path and the flavour"},
}

func isFault(name string) bool {
	return slices.ContainsFunc(faultHelp, func(f [2]string) bool { return f[0] == name })
}

// apply sets one knob. A fault may stand as a key of its own; its value is then `after`. The other way round,
// fault=crlf is crlf.
func (k *knobs) apply(name, value string) error {
	if name == "fault" && value != "" {
		name, value = value, ""
	}
	name = strings.ReplaceAll(name, "-", "_")
	if isFault(name) {
		k.fault = name
		if value == "" || value == "true" {
			return nil
		}
		name = "after"
	}
	for _, e := range knobTable {
		if e.name == name && e.set != nil {
			if err := e.set(k, value); err != nil {
				return fmt.Errorf("knob %s: %w", name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no knob %q; GET /sim lists them", name)
}

// parse applies `sim:key=value,key=value` up to the first white space and returns what follows it. A text without
// the prefix is returned as it is.
func (k *knobs) parse(s string) (rest string, err error) {
	list, ok := strings.CutPrefix(s, "sim:")
	if !ok {
		return s, nil
	}
	if i := strings.IndexAny(list, " \t\r\n"); i >= 0 {
		list, rest = list[:i], strings.TrimSpace(list[i:])
	}
	if list != "" {
		k.order += list + " "
	}
	for pair := range strings.SplitSeq(list, ",") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		if err := k.apply(name, value); err != nil {
			return rest, err
		}
	}
	return rest, nil
}

// jsonValue turns a value of /sim/config into a knob's text; drop is set where the key is to be cleared.
func jsonValue(v any) (value string, drop bool, err error) {
	switch v := v.(type) {
	case nil:
		return "", true, nil
	case bool:
		return "", !v, nil
	case string:
		return v, false, nil
	case json.Number:
		return v.String(), false, nil
	}
	return "", false, errors.New("must be a string, a number, a boolean or null")
}

func number(field func(*knobs) *int, lo, hi int) func(*knobs, string) error {
	return func(k *knobs, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("must be a number from %d to %d, not %q", lo, hi, value)
		}
		*field(k) = n
		return nil
	}
}

// size takes bytes, with k or m for KiB and MiB; bare is what the key means without a value, 0 for nothing.
func size(field func(*knobs) *int, bare int) func(*knobs, string) error {
	return func(k *knobs, value string) error {
		if value == "" && bare > 0 {
			*field(k) = bare
			return nil
		}
		unit, digits := 1, value
		if s, ok := strings.CutSuffix(value, "k"); ok {
			unit, digits = 1<<10, s
		} else if s, ok := strings.CutSuffix(value, "m"); ok {
			unit, digits = 1<<20, s
		}
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 || n > maxKnobBytes/unit {
			return fmt.Errorf("must be 1 to %d bytes, e.g. 4096, 64k or 1m, not %q", maxKnobBytes, value)
		}
		*field(k) = n * unit
		return nil
	}
}

func duration(field func(*knobs) *time.Duration) func(*knobs, string) error {
	return func(k *knobs, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return fmt.Errorf("must be a duration, e.g. 250ms or 2s, not %q", value)
		}
		*field(k) = d
		return nil
	}
}

func setRate(k *knobs, value string) error {
	r, err := strconv.ParseFloat(value, 64)
	if err != nil || !(r >= 0 && r <= 1e9) {
		return fmt.Errorf("must be tokens per second, e.g. 50, not %q", value)
	}
	k.gap = 0
	if r > 0 {
		k.gap = time.Duration(float64(time.Second) / r)
	}
	return nil
}

func setRedirect(k *knobs, value string) error {
	k.redirect = value
	if value == "" {
		k.redirect = redirectedPath
	}
	return nil
}

func choice(field func(*knobs) *string, names ...string) func(*knobs, string) error {
	return func(k *knobs, value string) error {
		if !slices.Contains(names, value) {
			return fmt.Errorf("must be one of %s, not %q", strings.Join(names, ", "), value)
		}
		*field(k) = value
		return nil
	}
}

func text(field func(*knobs) *string) func(*knobs, string) error {
	return func(k *knobs, value string) error {
		*field(k) = value
		return nil
	}
}

func toggle(field func(*knobs) *bool) func(*knobs, string) error {
	return func(k *knobs, value string) error {
		switch value {
		case "", "true", "1":
			*field(k) = true
		case "false", "0":
			*field(k) = false
		default:
			return fmt.Errorf("must stand alone, or be true or false, not %q", value)
		}
		return nil
	}
}
