package sim

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// schemaDepth ends a schema that refers to itself without an end of its own.
const schemaDepth = 24

// exampleOf returns a JSON document that satisfies schema; `{}` where there is none or it cannot be read. It knows
// what structured outputs and tools use of JSON Schema: types, properties, items, enum, const, anyOf, oneOf, allOf,
// local $ref, and the bounds of lengths and numbers. Patterns it does not.
func exampleOf(schema json.RawMessage) string {
	var root any
	if len(schema) == 0 || json.Unmarshal(schema, &root) != nil {
		return "{}"
	}
	e := exampler{root: root}
	return string(marshal(e.example(root, 0)))
}

type exampler struct{ root any }

func (e *exampler) example(schema any, depth int) any {
	s, ok := schema.(map[string]any)
	if !ok || depth > schemaDepth { // true, or endless
		return nil
	}
	if ref, ok := s["$ref"].(string); ok {
		return e.example(e.resolve(ref), depth+1)
	}
	if v, ok := s["const"]; ok {
		return v
	}
	if v, ok := s["enum"].([]any); ok && len(v) > 0 {
		return v[0]
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := s[key].([]any); ok && len(list) > 0 {
			return e.example(merge(s, e.shallowest(list)), depth+1)
		}
	}
	if list, ok := s["allOf"].([]any); ok {
		all := s
		for _, part := range list {
			all = merge(all, e.deref(part))
		}
		return e.example(without(all, "allOf"), depth+1)
	}
	return e.byType(typeOf(s), s, depth)
}

// deref follows a local reference.
func (e *exampler) deref(schema any) any {
	for range schemaDepth {
		s, ok := schema.(map[string]any)
		if !ok {
			return schema
		}
		ref, ok := s["$ref"].(string)
		if !ok {
			return schema
		}
		schema = e.resolve(ref)
	}
	return nil
}

// resolve looks up "#/a/b".
func (e *exampler) resolve(ref string) any {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil
	}
	at := e.root
	for step := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if step == "" {
			continue
		}
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(step)]
	}
	return at
}

// shallowest prefers a branch that is not an object or array: a nullable recursion ends with it.
func (e *exampler) shallowest(branches []any) any {
	for _, b := range branches {
		if s, ok := e.deref(b).(map[string]any); ok {
			switch typeOf(s) {
			case "object", "array", "null", "":
			default:
				return s
			}
		}
	}
	for _, b := range branches {
		if s, ok := b.(map[string]any); ok && s["type"] == "null" {
			return s
		}
	}
	return branches[0]
}

// merge lays extra over base; properties and required lists are joined.
func merge(base map[string]any, extra any) map[string]any {
	out := without(base, "anyOf", "oneOf")
	x, ok := extra.(map[string]any)
	if !ok {
		return out
	}
	for k, v := range x {
		switch have := out[k].(type) {
		case map[string]any:
			if more, ok := v.(map[string]any); ok && k == "properties" {
				joined := maps.Clone(have)
				maps.Copy(joined, more)
				v = joined
			}
		case []any:
			if more, ok := v.([]any); ok && k == "required" {
				v = append(slices.Clone(have), more...)
			}
		}
		out[k] = v
	}
	return out
}

func without(m map[string]any, keys ...string) map[string]any {
	out := maps.Clone(m)
	for _, k := range keys {
		delete(out, k)
	}
	return out
}

func typeOf(s map[string]any) string {
	switch t := s["type"].(type) {
	case string:
		return t
	case []any:
		for _, v := range t {
			if name, ok := v.(string); ok && name != "null" {
				return name
			}
		}
		return "null"
	}
	switch {
	case s["properties"] != nil, s["required"] != nil:
		return "object"
	case s["items"] != nil:
		return "array"
	}
	return ""
}

func (e *exampler) byType(t string, s map[string]any, depth int) any {
	switch t {
	case "object":
		return e.object(s, depth)
	case "array":
		return e.array(s, depth)
	case "string":
		return exampleString(s)
	case "integer", "number":
		return exampleNumber(t, s)
	case "boolean":
		return true
	case "null":
		return nil
	}
	return "any"
}

func (e *exampler) object(s map[string]any, depth int) any {
	out := map[string]any{}
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for name, p := range properties {
		if depth > 4 && !slices.Contains(required, any(name)) { // optional branches end early
			continue
		}
		out[name] = e.example(p, depth+1)
	}
	for _, r := range required {
		if name, ok := r.(string); ok && !has(out, name) {
			out[name] = "any"
		}
	}
	return out
}

func has(m map[string]any, key string) bool {
	_, ok := m[key]
	return ok
}

func (e *exampler) array(s map[string]any, depth int) any {
	n := max(int(bound(s, "minItems", 0)), 1)
	if bound(s, "maxItems", 1) < 1 || depth > 4 && bound(s, "minItems", 0) == 0 {
		n = 0
	}
	out := make([]any, 0, min(n, 64))
	for range min(n, 64) {
		out = append(out, e.example(s["items"], depth+1))
	}
	return out
}

func bound(s map[string]any, key string, otherwise float64) float64 {
	if v, ok := s[key].(float64); ok {
		return v
	}
	return otherwise
}

var formatExamples = map[string]string{
	"date-time": "2025-01-01T00:00:00Z", "date": "2025-01-01", "time": "00:00:00Z", "duration": "PT1S",
	"email": "sim@example.com", "hostname": "example.com", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1",
	"uri": "https://example.com/", "uuid": "00000000-0000-4000-8000-000000000000",
}

func exampleString(s map[string]any) string {
	if f, ok := s["format"].(string); ok && formatExamples[f] != "" {
		return formatExamples[f]
	}
	text := "text"
	if least := int(bound(s, "minLength", 0)); least > len(text) {
		text += strings.Repeat("x", min(least, 4096)-len(text))
	}
	return text[:max(0, min(len(text), int(bound(s, "maxLength", 4096))))]
}

func exampleNumber(t string, s map[string]any) any {
	n := 1.0
	if lo := bound(s, "minimum", n); lo > n {
		n = lo
	}
	if lo := bound(s, "exclusiveMinimum", n-1); lo >= n {
		n = lo + 1
	}
	if hi := bound(s, "maximum", n); hi < n {
		n = hi
	}
	if hi := bound(s, "exclusiveMaximum", n+1); hi <= n {
		n = hi - 1
	}
	if m := bound(s, "multipleOf", 0); m > 0 {
		n = m * float64(int64((n+m-1e-9)/m))
	}
	if t == "integer" {
		return int64(n)
	}
	return n
}
