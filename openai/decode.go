package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Bounds of what a request may hold. The body has a bound in bytes; these are for what costs more than its bytes.
const (
	maxElements = 10_000 // of one array or map
	maxTools    = 1024
	maxStops    = 64
)

// decode reads a value that was scanned before into the struct that into points to, as encoding/json does, but for this:
// a member that the struct does not have, one in another spelling and one that appears twice are refused; null is
// as absent; and an error names the place in the client's words, such as messages[2].content[1].type. Its message is a
// predicate, for [explain] to put the place before it.
//
// Two tags stand for members that are not taken. `hint:"why"`: it is known and has no effect on the answer, so that it may
// hold anything. `refuse:"why"`: it is known and can't be honoured.
func decode(raw []byte, into any) *Error {
	return decodeValue(raw, reflect.ValueOf(into).Elem())
}

// explain puts the place of the fault before the message.
func explain(e *Error) *Error {
	if e != nil && e.Param != "" {
		e.Param = excerpt(e.Param)
		e.Message = e.Param + " " + e.Message
	}
	return e
}

// within says that the fault lies in a member or an element of this name.
func within(name string, e *Error) *Error {
	switch {
	case e == nil:
	case e.Param == "":
		e.Param = name
	case e.Param[0] == '[':
		e.Param = name + e.Param
	default:
		e.Param = name + "." + e.Param
	}
	return e
}

// withinIndex says that the fault lies in an element.
func withinIndex(i int, e *Error) *Error {
	if e == nil {
		return nil
	}
	return within("["+strconv.Itoa(i)+"]", e)
}

// missing says that a required member is absent.
func missing(name string) *Error { return InvalidRequest(name, "is missing") }

// unsupported says that a member can't be honoured.
func unsupported(name, why string) *Error { return InvalidRequest(name, "is not supported: "+why) }

// oneOf checks a member that has a closed set of values; empty is absent.
func oneOf(name, value string, allowed ...string) *Error {
	if value == "" {
		return nil
	}
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return InvalidRequest(name, "must be one of "+strings.Join(allowed, ", "))
}

var rawType = reflect.TypeFor[json.RawMessage]()

func decodeValue(raw []byte, v reflect.Value) *Error {
	if is(raw, 'n') {
		return nil
	}
	if v.Type() == rawType {
		v.SetBytes(raw)
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		v.Set(p)
		return decodeValue(raw, p.Elem())
	case reflect.Struct:
		return decodeStruct(raw, v)
	case reflect.Slice:
		return decodeSlice(raw, v)
	case reflect.Map:
		return decodeMap(raw, v)
	}
	return decodeScalar(raw, v)
}

func decodeScalar(raw []byte, v reflect.Value) *Error {
	switch v.Kind() {
	case reflect.String:
		if !is(raw, '"') {
			return InvalidRequest("", "must be a string")
		}
		v.SetString(unquote(raw))
	case reflect.Bool:
		if !is(raw, 't') && !is(raw, 'f') {
			return InvalidRequest("", "must be true or false")
		}
		v.SetBool(raw[0] == 't')
	case reflect.Int64, reflect.Int:
		n, ok := integer(raw)
		if !ok {
			return InvalidRequest("", "must be an integer")
		}
		v.SetInt(n)
	case reflect.Float64:
		x, ok := number(raw)
		if !ok || math.IsInf(x, 0) {
			return InvalidRequest("", "must be a number")
		}
		v.SetFloat(x)
	default:
		panic("openai: decode into " + v.Type().String()) // a struct of ours
	}
	return nil
}

// integer reads a whole number, also one that some client wrote as 100.0.
func integer(raw []byte) (int64, bool) {
	if n, err := strconv.ParseInt(string(raw[:min(len(raw), maxNumber)]), 10, 64); err == nil && len(raw) <= maxNumber {
		return n, true
	}
	x, ok := number(raw)
	if !ok || x != math.Trunc(x) || math.Abs(x) >= 1<<53 {
		return 0, false
	}
	return int64(x), true
}

func decodeSlice(raw []byte, v reflect.Value) *Error {
	if !is(raw, '[') {
		return InvalidRequest("", "must be an array")
	}
	zero := reflect.Zero(v.Type().Elem())
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for e := arrayElements(raw); e.next(); {
		i := v.Len()
		if i == maxElements {
			return InvalidRequest("", fmt.Sprintf("has more than %d elements", maxElements))
		}
		v.Set(reflect.Append(v, zero))
		if is(e.val, 'n') && zero.Kind() != reflect.Pointer {
			return withinIndex(i, InvalidRequest("", "must not be null"))
		}
		if err := decodeValue(e.val, v.Index(i)); err != nil {
			return withinIndex(i, err)
		}
	}
	return nil
}

func decodeMap(raw []byte, v reflect.Value) *Error {
	if !is(raw, '{') {
		return InvalidRequest("", "must be an object")
	}
	v.Set(reflect.MakeMap(v.Type()))
	for m := objectMembers(raw); m.next(); {
		if v.Len() == maxElements {
			return InvalidRequest("", fmt.Sprintf("has more than %d members", maxElements))
		}
		key := string(appendUnescaped(nil, m.key))
		value := reflect.New(v.Type().Elem()).Elem()
		if err := decodeValue(m.val, value); err != nil {
			return within(key, err)
		}
		v.SetMapIndex(reflect.ValueOf(key), value)
	}
	return nil
}

func decodeStruct(raw []byte, v reflect.Value) *Error {
	if !is(raw, '{') {
		return InvalidRequest("", "must be an object")
	}
	fields := fieldsOf(v.Type())
	seen := make([]bool, len(fields.list))
	for m := objectMembers(raw); m.next(); {
		at, ok := fields.byName[string(m.key)]
		if !ok {
			return InvalidRequest(string(m.key), "is not a known field")
		}
		f := &fields.list[at]
		if seen[at] {
			return InvalidRequest(f.name, "appears more than once")
		}
		seen[at] = true
		switch {
		case is(m.val, 'n') || f.hint:
		case f.refuse != "":
			return unsupported(f.name, f.refuse)
		default:
			if err := decodeValue(m.val, v.FieldByIndex(f.index)); err != nil {
				return within(f.name, err)
			}
		}
	}
	return nil
}

// structFields are the members that a struct takes.
type structFields struct {
	list   []structField
	byName map[string]int
}

type structField struct {
	name   string
	index  []int
	hint   bool
	refuse string
}

var knownStructs sync.Map // of reflect.Type to *structFields; as many as there are types in this package

func fieldsOf(t reflect.Type) *structFields {
	if f, ok := knownStructs.Load(t); ok {
		return f.(*structFields)
	}
	fields := &structFields{byName: map[string]int{}}
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue
		}
		_, hint := f.Tag.Lookup("hint")
		name := f.Tag.Get("json")
		fields.byName[name] = len(fields.list)
		fields.list = append(fields.list, structField{name: name, index: f.Index, hint: hint, refuse: f.Tag.Get("refuse")})
	}
	known, _ := knownStructs.LoadOrStore(t, fields)
	return known.(*structFields)
}
