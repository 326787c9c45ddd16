package openai

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestValue(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "-3": -3, "40.0": 40, "1e3": 1000, "9223372036854775807": 9223372036854775807} {
		if n, ok := Value(in).Int(); !ok || n != want {
			t.Errorf("%s: %d %t", in, n, ok)
		}
	}
	for _, in := range []string{"", "null", `"1"`, "1.5", "1e300", "true", "[1]", "1e400"} {
		if n, ok := Value(in).Int(); ok {
			t.Errorf("%s: is no integer, not %d", in, n)
		}
	}
	if f, ok := Value("-0.25").Float(); !ok || f != -0.25 {
		t.Errorf("-0.25: %v %t", f, ok)
	}
	for in, want := range map[string]bool{
		"": true, "null": true, `""`: true, "[ ]": true, "{ }": true, "0": true, "0.0": true, "false": true,
		`" "`: false, "[0]": false, `{"a":null}`: false, "1": false, "true": false,
	} {
		if got := Value(in).Empty(); got != want {
			t.Errorf("%s: Empty is %t", in, got)
		}
	}
	for in, want := range map[string]bool{" {}\n": true, `{"a":1}`: true, "": false, "[]": false, "{": false, "{} {}": false, " ": false} {
		if IsObject(in) != want || IsObject([]byte(in)) != want {
			t.Errorf("%q: IsObject is not %t", in, want)
		}
	}
}

func TestRequestReader(t *testing.T) {
	read := func(body string, dots bool) *Error {
		r := RequestReader{Dots: dots}
		r.Object(nil, Value(body), func(name string, v Value) bool {
			switch name {
			case "s":
				r.String(nil, name, v)
			case "b":
				r.Bool(nil, name, v)
			case "i":
				r.Int(nil, name, v)
			case "f":
				r.Float(nil, name, v)
			case "o":
				r.Raw(nil, name, v)
			case "l":
				r.Strings(nil, name, v, 2)
			default:
				return false
			}
			return true
		})
		return r.Err
	}
	if err := read(`{"s":"a","b":false,"i":1,"f":1.5,"o":{"x":[]},"l":["a","b"],"x":null}`, false); err != nil {
		t.Error(err)
	}
	for body, param := range map[string]string{
		`[]`: "", `{"s":1}`: "s", `{"b":"true"}`: "b", `{"i":1.5}`: "i", `{"f":"1"}`: "f", `{"o":[]}`: "o", `{"l":"a"}`: "l",
		`{"l":["a",1]}`: "l.1", `{"l":["a","b","c"]}`: "l", `{"x":1}`: "x", `{"s":"a","\u0073":"b"}`: "s", `{"s":null,"s":"a"}`: "s",
	} {
		err := read(body, true)
		if err == nil || err.Param != param || err.Status != 400 || !strings.HasPrefix(err.Message, param) {
			t.Errorf("%s: %v, want the param %q", body, err, param)
		}
	}
	if err := read(`{"l":["a",1]}`, false); err.Param != "l[1]" {
		t.Errorf("without dots: %q", err.Param)
	}
	wide := map[string]*int{}
	for i := range maxMembers + 1 {
		wide[strings.Repeat("x", i+1)] = nil
	}
	body, err := json.Marshal(wide)
	if err != nil {
		t.Fatal(err)
	}
	if err := read(string(body), false); err == nil {
		t.Error("an object with too many members passed")
	}
}

// TestThreadUnsupported: Anthropic's clients look for the code in the details, and go on without a thread.
func TestThreadUnsupported(t *testing.T) {
	got := string(AppendError(nil, FamilyAnthropic, "req_1", ThreadUnsupported()))
	const want = `{"type":"error","error":{"type":"invalid_request_error","message":"thread: is not supported because conversations are not stored; send all messages without it",` +
		`"details":{"error_code":"thread_unsupported_request","unsupported":[]}},"request_id":"req_1"}`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestParamInMessage: two families have no member for the parameter at fault, so their message names it, once.
func TestParamInMessage(t *testing.T) {
	for message, want := range map[string]string{"No provider has it.": "options.seed: No provider has it.", "options.seed is odd": "options.seed is odd"} {
		e := InvalidRequest("options.seed", message)
		if got := string(AppendError(nil, FamilyOllama, "", e)); got != `{"error":"`+want+`"}` {
			t.Errorf("Ollama: %s", got)
		}
		if got := string(AppendError(nil, FamilyAnthropic, "", e)); got != `{"type":"error","error":{"type":"invalid_request_error","message":"`+want+`"}}` {
			t.Errorf("Anthropic: %s", got)
		}
		if got := string(AppendError(nil, FamilyOpenAI, "", e)); got != `{"error":{"message":"`+message+`","type":"invalid_request_error","param":"options.seed","code":"invalid_request_error"}}` {
			t.Errorf("OpenAI: %s", got)
		}
	}
}
