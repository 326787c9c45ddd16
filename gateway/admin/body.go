package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
)

// decode reads a JSON body into v, a pointer. Its error names the member that is to blame, and how.
func decode(r *http.Request, v any) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	kind := reflect.TypeOf(v).Elem()
	if err = strictly(data, v); err != nil {
		return bodyFault(data, kind, err)
	}
	if name, twice := doubtful(data, kind); twice {
		return givenTwice(name)
	} else if name != "" {
		return unknownMember(name, membersOf(kind))
	}
	return nil
}

// decodeValue reads a body with a secret in it: no fault of such a body repeats any of it.
func decodeValue(r *http.Request, v any) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	kind := reflect.TypeOf(v).Elem()
	if err = strictly(data, v); err == nil {
		switch name, twice := doubtful(data, kind); {
		case twice:
			return givenTwice(name)
		case name == "":
			return nil
		}
	}
	name, _ := wrongMember(data, kind)
	if member, ok := membersOf(kind)[name]; ok {
		return invalid(name, name+": must be "+wanted(member)+"; its value is not repeated here")
	}
	return invalid("", "the body does not have the expected form; its value is not repeated here")
}

// strictly decodes one JSON value, none of whose members is unknown.
func strictly(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("it has data after the first value")
	}
	return nil
}

// bodyFault says what is wrong with a body that did not decode to a struct of that type.
func bodyFault(data []byte, kind reflect.Type, err error) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return invalid("", "the body is empty; a JSON object is expected")
	}
	if !json.Valid(data) {
		return invalid("", "the body is not valid JSON: "+err.Error())
	}
	name, value := wrongMember(data, kind)
	members := membersOf(kind)
	if member, ok := members[name]; ok {
		return invalid(name, name+": must be "+wanted(member)+", not "+given(value))
	}
	if value != nil {
		return unknownMember(name, members)
	}
	return invalid("", "the body must be a JSON object")
}

func givenTwice(name string) error { return invalid(name, name+": is given twice") }

func unknownMember(name string, members map[string]reflect.Type) error {
	return invalid(name, fmt.Sprintf("unknown member %q; allowed: %s", name, strings.Join(slices.Sorted(maps.Keys(members)), ", ")))
}

// doubtful is the first member that encoding/json takes though it should not: it tells no capitals from small letters, and
// of two members it takes the last. twice: it is the second of its name.
func doubtful(data []byte, kind reflect.Type) (name string, twice bool) {
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil || start != json.Delim('{') || kind.Kind() != reflect.Struct {
		return "", false
	}
	members, seen := membersOf(kind), map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return "", false // it was decoded before: this can't be
		}
		name, _ = token.(string)
		if _, known := members[name]; !known || seen[name] {
			return name, known
		}
		seen[name] = true
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return "", false
		}
	}
	return "", false
}

// wrongMember is the first member, by its name, that does not decode alone; its value is nil where there is none.
func wrongMember(data []byte, kind reflect.Type) (string, json.RawMessage) {
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil {
		return "", nil
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		alone, err := json.Marshal(map[string]json.RawMessage{name: members[name]})
		if err != nil || strictly(alone, reflect.New(kind).Interface()) != nil {
			return name, members[name]
		}
	}
	return "", nil
}

// membersOf are the types of a body's members by their names.
func membersOf(kind reflect.Type) map[string]reflect.Type {
	members := map[string]reflect.Type{}
	if kind.Kind() != reflect.Struct {
		return members
	}
	for _, field := range reflect.VisibleFields(kind) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
			members[name] = field.Type
		}
	}
	return members
}

// wanted says what a member of that type must be.
func wanted(kind reflect.Type) string {
	switch kind {
	case reflect.TypeFor[Value]():
		return "a string"
	case reflect.TypeFor[*time.Time](), reflect.TypeFor[time.Time](), reflect.TypeFor[Expiry]():
		return "a time such as 2027-03-31T12:00:00Z"
	}
	switch kind.Kind() {
	case reflect.Pointer:
		return wanted(kind.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number below 2^63"
	case reflect.Slice:
		return "a list, each entry " + wanted(kind.Elem())
	}
	return "an object"
}

// maxGiven bounds how much of a value a fault repeats, in bytes.
const maxGiven = 64

// given is a value as a fault repeats it.
func given(value json.RawMessage) string {
	text := string(bytes.TrimSpace(value))
	if len(text) > maxGiven {
		return "what was given"
	}
	return text
}
