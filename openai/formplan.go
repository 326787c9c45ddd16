package openai

import (
	"bytes"
	"fmt"
	"math"
)

// Plan puts a route's defaults and caps into the form, as [Envelope.Plan] does for JSON. A default goes into a plain field
// that is absent or empty: a string as it is, all else as JSON, and null nowhere. Of the answer's length a cap holds under
// every name, but none is put in: no operation that takes forms has one of its own.
//
// A field that a default or a cap is for must be a plain one in its exact spelling, and with a cap a JSON number. The error
// for that is an *Error with status 400 whose Param is the field; what is the caller's fault has status 500.
func (f *Form) Plan(defaults []ParameterDefault, caps []ParameterCap) error {
	for _, d := range defaults {
		if e := f.putDefault(d); e != nil {
			return e
		}
	}
	for _, c := range caps {
		names := []string{c.Name}
		switch {
		case ParameterIsLength(c.Name):
			names = lengthNames[:]
		case c.Name == ChoicesParameter:
			names = fieldNames[fieldChoices : fieldSequences+1]
		}
		for _, name := range names {
			if e := f.lower(name, c); e != nil {
				return e
			}
		}
	}
	return nil
}

// field returns the plain field of that name, nil where there is none.
func (f *Form) field(name string) (*formPart, *Error) {
	n := f.names[foldName(name)]
	switch {
	case n == nil:
		return nil, nil
	case n.base != name || n.indexed:
		return nil, InvalidRequest(name, name+" must be spelled exactly like this")
	case f.parts[n.at].file:
		return nil, InvalidRequest(name, name+" must be a plain field, not a file")
	}
	return &f.parts[n.at], nil
}

func (f *Form) putDefault(d ParameterDefault) *Error {
	if CheckParameter(d.Name) != nil || !wellFormed([]byte(d.Value)) {
		return Internal()
	}
	part, e := f.field(d.Name)
	value := bytes.TrimSpace([]byte(d.Value))
	switch {
	case e != nil:
		return e
	case ParameterIsLength(d.Name), value[0] == 'n', part != nil && len(part.content) > 0:
		return nil
	case value[0] == '"':
		value = []byte(unquote(value))
	}
	if part == nil {
		f.names[foldName(d.Name)] = &formName{base: d.Name, at: len(f.parts)}
		f.parts = append(f.parts, formPart{name: d.Name})
		part = &f.parts[len(f.parts)-1]
	}
	part.content = value
	return nil
}

// lower puts the cap in the place of a number that is above it, or that is no length where it should be one.
func (f *Form) lower(name string, c ParameterCap) *Error {
	if CheckParameter(c.Name) != nil || math.IsNaN(c.Max) || math.IsInf(c.Max, 0) {
		return Internal()
	}
	part, e := f.field(name)
	if e != nil || part == nil || len(part.content) == 0 {
		return e
	}
	v, ok := formNumber(part.content)
	if !ok {
		return InvalidRequest(name, fmt.Sprintf("%s must be a number", name))
	}
	if v > c.Max || ParameterIsLength(name) && (v < 1 || v != math.Trunc(v)) {
		v = c.Max
	}
	part.content = appendNumber(nil, v) // in the one spelling that every reader takes alike
	return nil
}

// formNumber reads a JSON number with nothing around it. Languages take much more for a number: 1_000, 0x10, nan.
func formNumber(value []byte) (v float64, ok bool) {
	if len(value) > maxNumber || value[len(value)-1]-'0' > 9 || !wellFormed(value) {
		return 0, false
	}
	v, ok = number(value)
	return v, ok && !math.IsInf(v, -1)
}
