package route

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"iop/openai"
)

// maxDefaults bounds what the defaults of a route add to each request, in bytes.
const maxDefaults = 64 << 10

// parameterReader reads the parameters of one route.
type parameterReader struct {
	*reader
	to       Parameters
	names    map[string]string // by their lower-case form: decoders may take Seed for seed
	defaults map[string]member // by name
	length   string            // the default for the answer's length, or empty
	size     int
}

func (r *reader) parameters(n *yaml.Node, path string) Parameters {
	p := &parameterReader{reader: r, names: make(map[string]string), defaults: make(map[string]member)}
	var caps, refuse *yaml.Node
	r.object(n, path, []field{
		{name: "defaults", read: p.readDefaults},
		{name: "caps", read: func(n *yaml.Node, _ string) { caps = n }},
		{name: "allow", read: p.readAllow},
		{name: "refuse", read: func(n *yaml.Node, _ string) { refuse = n }},
	})
	if caps != nil { // after the defaults, which they are compared with
		p.readCaps(caps, join(path, "caps"), join(path, "defaults"))
	}
	if refuse != nil {
		p.readRefuse(refuse, join(path, "refuse"))
	}
	if len(p.to.Defaults)+len(p.to.Caps) > openai.MaxParameters {
		r.fault(n, path, "there are more than %d defaults and caps", openai.MaxParameters)
	}
	if p.size > maxDefaults {
		r.fault(n, path, "the defaults are larger than %d bytes", maxDefaults)
	}
	return p.to
}

func (p *parameterReader) readDefaults(n *yaml.Node, path string) {
	for _, m := range p.members(n, path) {
		at := join(path, m.name)
		if !p.name(m, at) {
			continue
		}
		if openai.ParameterIsLength(m.name) {
			if p.length != "" {
				p.fault(m.key, at, "%s sets the same parameter; keep one of them", p.length)
			}
			p.length = m.name
			if v, ok := asNumber(m.value); !ok || v != math.Trunc(v) || v < 1 || v > maxExact {
				p.fault(m.value, at, "a length must be a whole number of tokens, at least 1, not %s", describe(m.value))
			}
			p.defaults[openai.MaxTokensParameter] = m
		} else {
			p.defaults[m.name] = m
		}
		if isNull(m.value) {
			p.fault(m.key, at, "null is not a default: it means that no value is given")
			continue
		}
		value := p.json(nil, m.value, at)
		p.size += len(m.name) + len(value) + 4
		p.to.Defaults = append(p.to.Defaults, Default{Name: m.name, Value: string(value)})
	}
}

// maxExact is the greatest number up to which a float64 holds every whole number.
const maxExact = 1 << 53

func (p *parameterReader) readCaps(n *yaml.Node, path, defaults string) {
	for _, m := range p.members(n, path) {
		at := join(path, m.name)
		if !p.name(m, at) {
			continue
		}
		length := m.name == openai.MaxTokensParameter
		v, ok := asNumber(m.value)
		switch {
		case !length && openai.ParameterIsLength(m.name):
			p.fault(m.key, at, "write %s, which also applies to %s", openai.MaxTokensParameter, m.name)
			continue
		case m.name != openai.ChoicesParameter && openai.ParameterIsChoices(m.name):
			p.fault(m.key, at, "write %s, which also applies to %s", openai.ChoicesParameter, m.name)
			continue
		case !ok || v < 0:
			p.fault(m.value, at, "a cap must be a number of at least 0, not %s", describe(m.value))
			continue
		case length && (v != math.Trunc(v) || v < 1 || v > maxExact):
			p.fault(m.value, at, "this must be a whole number of tokens, at least 1, not %s", describe(m.value))
			continue
		case m.name == openai.ChoicesParameter && (v != math.Trunc(v) || v < 1 || v > maxExact):
			p.fault(m.value, at, "this must be a whole number of answers, at least 1, not %s", describe(m.value))
			continue
		}
		if d, ok := p.defaults[m.name]; ok {
			switch given, ok := asNumber(d.value); {
			case !ok:
				p.fault(d.value, join(defaults, d.name), "the parameter has a cap, so this must be a number, not %s", describe(d.value))
			case given > v:
				p.fault(d.value, join(defaults, d.name), "this is above the cap in line %d", m.key.Line)
			}
		}
		p.to.Caps = append(p.to.Caps, Cap{Name: m.name, Max: v})
	}
}

func (p *parameterReader) readAllow(n *yaml.Node, path string) {
	steering := openai.SteeringMembers()
	for i, v := range p.list(n, path, "leave it out to allow none") {
		at := element(path, i)
		name, ok := p.text(v, at)
		if !ok {
			continue
		}
		if err := openai.CheckParameter(name); err != nil && !slices.Contains(steering, name) {
			p.fault(v, at, "%v", err)
		}
		p.to.Allow = p.once(p.to.Allow, name, v, at)
	}
}

// readRefuse reads what the route refuses although it is known. What is not known is refused on such a route anyway.
func (p *parameterReader) readRefuse(n *yaml.Node, path string) {
	known := openai.KnownMembers()
	for i, v := range p.list(n, path, "leave it out to refuse none") {
		at := element(path, i)
		name := known[p.oneOf(v, at, known)]
		if err := openai.CheckParameter(name); err != nil {
			p.fault(v, at, "%v", err)
		}
		if slices.Contains(p.to.Allow, name) {
			p.fault(v, at, "%s is also in allow; keep one of them", name)
		}
		p.to.Refuse = p.once(p.to.Refuse, name, v, at)
	}
}

// once appends a name to a list that may have it once.
func (p *parameterReader) once(list []string, name string, n *yaml.Node, path string) []string {
	if slices.Contains(list, name) {
		p.fault(n, path, "%s is already in this list", name)
	}
	return append(list, name)
}

// name checks the name of a parameter.
func (p *parameterReader) name(m member, path string) bool {
	if err := openai.CheckParameter(m.name); err != nil {
		p.fault(m.key, path, "%v", err)
		return false
	}
	folded := strings.ToLower(m.name)
	if other, taken := p.names[folded]; taken && other != m.name {
		p.fault(m.key, path, "%s is the same name, spelled differently; keep one of them", other)
		return false
	}
	p.names[folded] = m.name
	return true
}

// json appends a value of the file as JSON.
func (r *reader) json(dst []byte, n *yaml.Node, path string) []byte {
	switch n.Kind {
	case yaml.MappingNode:
		dst = append(dst, '{')
		for i, m := range r.members(n, path) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendJSON(dst, m.name), ':')
			dst = r.json(dst, m.value, join(path, m.name))
		}
		return append(dst, '}')
	case yaml.SequenceNode:
		dst = append(dst, '[')
		for i, v := range n.Content {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = r.json(dst, v, element(path, i))
		}
		return append(dst, ']')
	}
	return r.jsonScalar(dst, n, path)
}

func (r *reader) jsonScalar(dst []byte, n *yaml.Node, path string) []byte {
	switch n.ShortTag() {
	case "!!str":
		return appendJSON(dst, n.Value)
	case "!!bool":
		return strconv.AppendBool(dst, r.boolean(n, path))
	case "!!null":
		return append(dst, "null"...)
	case "!!int":
		var whole int64
		if n.Decode(&whole) == nil {
			return strconv.AppendInt(dst, whole, 10)
		}
		fallthrough
	case "!!float":
		if v, ok := asNumber(n); ok {
			return appendJSON(dst, v)
		}
		r.fault(n, path, "a number must be finite, not %s", describe(n))
		return append(dst, '0')
	}
	r.fault(n, path, "this is not a string, number, true or false; put it in quotes")
	return append(dst, "null"...)
}

// appendJSON appends a string or a finite number.
func appendJSON(dst []byte, v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("route: strings and finite numbers are JSON: " + err.Error())
	}
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}
