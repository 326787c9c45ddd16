package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// schemas are testdata/schema.json: the members that OpenAI's published schema requires of each object and event that is
// written here, with what the stricter Open Responses asks for besides, and nothing else. A type is string, int,
// number, bool, null, any, =literal, []type or the name of another; | stands between alternatives, ? behind the name
// of a member that may be absent.
var schemas = sync.OnceValues(func() (map[string]any, error) {
	data, err := os.ReadFile(filepath.Join("testdata", "schema.json"))
	if err != nil {
		return nil, err
	}
	var table map[string]any
	return table, json.Unmarshal(data, &table)
})

// checkSchema checks a value against a type of the table.
func checkSchema(t *testing.T, typ string, v any) {
	t.Helper()
	table, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	if err := conforms(table, typ, v); err != nil {
		data, _ := json.Marshal(v)
		t.Fatalf("%s: %v\n%s", typ, err, data)
	}
}

func conforms(table map[string]any, typ any, v any) error {
	members, ok := typ.(map[string]any)
	if ok {
		return conformsObject(table, members, v)
	}
	var errs []string
	for _, alternative := range strings.Split(typ.(string), "|") {
		err := conformsOne(table, alternative, v)
		if err == nil {
			return nil
		}
		errs = append(errs, err.Error())
	}
	return fmt.Errorf("%s", strings.Join(errs, "; "))
}

func conformsObject(table, members map[string]any, v any) error {
	object, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%v is no object", v)
	}
	known := map[string]bool{}
	for name, typ := range members {
		name, optional := strings.CutSuffix(name, "?")
		known[name] = true
		member, ok := object[name]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("no member %s", name)
		}
		if err := conforms(table, typ, member); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for name := range object {
		if !known[name] {
			return fmt.Errorf("a member %s", name)
		}
	}
	return nil
}

func conformsOne(table map[string]any, typ string, v any) error {
	ok := false
	switch {
	case typ == "any":
		ok = true
	case typ == "null":
		ok = v == nil
	case typ == "string":
		_, ok = v.(string)
	case typ == "bool":
		_, ok = v.(bool)
	case typ == "number":
		_, ok = v.(float64)
	case typ == "int":
		n, isNumber := v.(float64)
		ok = isNumber && n == math.Trunc(n)
	case typ[0] == '=':
		ok = v == typ[1:]
	case strings.HasPrefix(typ, "[]"):
		list, isList := v.([]any)
		for i, element := range list {
			if err := conforms(table, typ[2:], element); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		ok = isList
	default:
		if table[typ] == nil {
			return fmt.Errorf("the table has no %s", typ)
		}
		return conforms(table, table[typ], v)
	}
	if !ok {
		return fmt.Errorf("%v is not %s", v, typ)
	}
	return nil
}

// checkChatStream checks a whole stream of Chat Completions, that ended well or with an error.
func checkChatStream(t *testing.T, stream []byte, spec RenderSpec, failed bool) {
	t.Helper()
	events := splitStream(t, stream)
	end := events[len(events)-1]
	finished := map[float64]bool{}
	for i, e := range events[:len(events)-1] {
		if e.data == "[DONE]" {
			t.Fatal("the stream goes on after its end")
		}
		chunk := e.object(t)
		checkSchema(t, "chunk", chunk)
		if chunk["id"] != "chatcmpl-"+spec.ID || chunk["created"] != float64(spec.Created.Unix()) || chunk["model"] != spec.Model {
			t.Fatalf("not the same in every chunk: %s", e.data)
		}
		if _, ok := chunk["usage"]; ok != spec.IncludeUsage {
			t.Fatalf("usage: %v, wanted: %v", ok, spec.IncludeUsage)
		}
		choices := chunk["choices"].([]any)
		if last := i == len(events)-2; len(choices) != 1 && !(last && spec.IncludeUsage && len(choices) == 0) {
			t.Fatalf("%d choices: %s", len(choices), e.data)
		}
		for _, c := range choices {
			checkChoiceOrder(t, finished, c.(map[string]any))
		}
	}
	if failed {
		checkSchema(t, "chat_error", end.object(t))
	} else if end.data != "[DONE]" || slices.Contains(slices.Collect(valuesOf(finished)), false) {
		t.Fatalf("no whole answer: %v", finished)
	}
}

// checkChoiceOrder checks that a choice begins with its role and has nothing after its end.
func checkChoiceOrder(t *testing.T, finished map[float64]bool, c map[string]any) {
	t.Helper()
	index := c["index"].(float64)
	ended, begun := finished[index]
	_, role := c["delta"].(map[string]any)["role"]
	if ended || role == begun {
		t.Fatalf("choice %v: begun %v, ended %v: %v", index, begun, ended, c)
	}
	finished[index] = c["finish_reason"] != nil
}

func valuesOf(m map[float64]bool) func(func(bool) bool) {
	return func(yield func(bool) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// responsesChecker follows the items of a Responses stream.
type responsesChecker struct {
	items map[float64]*checkedItem
}

type checkedItem struct {
	id, kind   string
	done       bool
	text       string // of the open part or summary, or the arguments
	part       string // type of the open part, empty: none
	parts      int
	argsDone   bool
	annotation int
}

// checkResponsesStream checks a whole stream of Responses and returns the last response object.
func checkResponsesStream(t *testing.T, stream []byte, end string) map[string]any {
	t.Helper()
	events := splitStream(t, stream)
	c := responsesChecker{items: map[float64]*checkedItem{}}
	var final map[string]any
	for i, e := range events {
		v := e.object(t)
		if e.name != v["type"] || v["sequence_number"] != float64(i) {
			t.Fatalf("event %d: %s", i, e.data)
		}
		checkSchema(t, e.name, v)
		switch {
		case i < 2:
			if want := []string{"response.created", "response.in_progress"}[i]; e.name != want {
				t.Fatalf("event %d is %s", i, e.name)
			}
		case e.name == "error":
			if end != "response.failed" || i != len(events)-2 {
				t.Fatalf("an error as event %d of %d", i, len(events))
			}
		case v["response"] != nil:
			if i != len(events)-1 || e.name != end {
				t.Fatalf("%s as event %d of %d, want %s at the end", e.name, i, len(events), end)
			}
			final = v["response"].(map[string]any)
		default:
			c.step(t, e.name, v)
		}
	}
	if final == nil {
		t.Fatalf("no end; the last event is %s", events[len(events)-1].name)
	}
	if end != "response.failed" {
		for index, item := range c.items {
			if !item.done {
				t.Fatalf("item %v is not done", index)
			}
		}
		if len(final["output"].([]any)) != len(c.items) || len(c.items) == 0 {
			t.Fatalf("%d items, %v", len(c.items), final["output"])
		}
	}
	return final
}

func (c *responsesChecker) step(t *testing.T, name string, v map[string]any) {
	t.Helper()
	index := v["output_index"].(float64)
	item := c.items[index]
	if name == "response.output_item.added" {
		added := v["item"].(map[string]any)
		if item != nil || index != float64(len(c.items)) {
			t.Fatalf("item %v is added after %d", index, len(c.items))
		}
		c.items[index] = &checkedItem{id: added["id"].(string), kind: added["type"].(string)}
		return
	}
	if item == nil || item.done || v["item_id"] != nil && v["item_id"] != item.id {
		t.Fatalf("%s of an item that is not open: %v", name, v)
	}
	bad := false
	switch name {
	case "response.output_item.done":
		done := v["item"].(map[string]any)
		bad = item.part != "" || done["id"] != item.id || item.kind == "function_call" && !item.argsDone
		item.done = true
	case "response.content_part.added", "response.reasoning_summary_part.added":
		bad = item.part != ""
		item.part, item.text, item.annotation = v["part"].(map[string]any)["type"].(string), "", 0
	case "response.content_part.done", "response.reasoning_summary_part.done":
		part := v["part"].(map[string]any)
		bad = item.part != part["type"] || part["text"] != nil && part["text"] != item.text || part["refusal"] != nil && part["refusal"] != item.text
		item.part = ""
		item.parts++
	case "response.output_text.delta", "response.refusal.delta", "response.reasoning_summary_text.delta":
		bad = item.part == ""
		item.text += v["delta"].(string)
	case "response.output_text.done", "response.reasoning_summary_text.done":
		bad = v["text"] != item.text
	case "response.refusal.done":
		bad = v["refusal"] != item.text
	case "response.output_text.annotation.added":
		bad = item.part != "output_text" || v["annotation_index"] != float64(item.annotation)
		item.annotation++
	case "response.function_call_arguments.delta":
		bad = item.kind != "function_call" || item.argsDone
		item.text += v["delta"].(string)
	case "response.function_call_arguments.done":
		bad = v["arguments"] != item.text
		item.argsDone = true
	default:
		bad = true
	}
	if at, ok := v["content_index"]; bad || ok && name != "response.content_part.done" && at != float64(item.parts) {
		t.Fatalf("%s out of order: %v, %+v", name, v, item)
	}
}
