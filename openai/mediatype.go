package openai

import (
	"fmt"
	"strings"
)

// The content types by which the Edge sends bodies on.
const (
	TypeJSON = "application/json"
	typeForm = "multipart/form-data"
)

// typeURLEncoded is what curl -d declares by default.
const typeURLEncoded = "application/x-www-form-urlencoded"

// RequestBodyType says how the body of a request to op is read: as JSON, or as the multipart form that the boundary
// divides. values are the lines of its Content-Type header.
//
// No body goes on under the type that its client declared: JSON is sent as TypeJSON, a form as [Form.ContentType]. A
// provider can therefore never read as a form, or in another charset, what was read as JSON here. JSON is what declares
// itself so (application/json, text/json and application/*+json, RFC 6839), what clients send unasked (text/plain,
// application/octet-stream), and what declares nothing. On Ollama's paths application/x-www-form-urlencoded is JSON too:
// Ollama reads no Content-Type, and its documents use curl -d, which sends that one. Every other type is refused: with
// 415, or 400 where the header is there twice. The error is an *Error or nil.
func RequestBodyType(op *Operation, values []string) (form bool, boundary string, err error) {
	if len(values) == 1 && values[0] == TypeJSON && op.JSON {
		return false, "", nil
	}
	form, boundary, e := requestBodyType(op, values)
	if e != nil {
		return false, "", e
	}
	return form, boundary, nil
}

func requestBodyType(op *Operation, values []string) (form bool, boundary string, e *Error) {
	if len(values) > 1 {
		return false, "", InvalidRequest("", "The request has more than one Content-Type header.")
	}
	var media string
	var params []mediaParam
	if len(values) == 1 && trimOWS(values[0]) != "" {
		var ok bool
		if media, params, ok = parseMedia(values[0]); !ok {
			return false, "", op.otherType("is malformed")
		}
	}
	switch {
	case media == typeForm && op.Multipart:
		boundary, e = formBoundary(params)
		return true, boundary, e
	case !op.JSON && media == "":
		return false, "", op.otherType("is missing")
	case !op.JSON || !isJSONType(media) && !(media == typeURLEncoded && op.isOllama()):
		return false, "", op.otherType("is " + excerpt(media))
	case !isUTF8(params):
		return false, "", op.otherType("declares a charset other than utf-8")
	}
	return false, "", nil
}

// isJSONType reports whether a body of this type is read as JSON.
func isJSONType(media string) bool {
	switch media {
	case "", TypeJSON, "text/json", "text/plain", "application/octet-stream":
		return true
	}
	return strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}

// isUTF8 reports whether no parameter says that the text is in another charset. ASCII is a part of UTF-8.
func isUTF8(params []mediaParam) bool {
	for _, p := range params {
		switch {
		case p.name == "charset" && (isCharset(p.value, "utf-8") || isCharset(p.value, "utf8") || isCharset(p.value, "us-ascii")):
		case strings.HasPrefix(p.name, "charset"): // charset*, charset*0 (RFC 2231) too
			return false
		}
	}
	return true
}

func isCharset(value, want string) bool { return strings.EqualFold(value, want) }

// otherType says what is wrong with the Content-Type of a request to op, and which one it takes.
func (op *Operation) otherType(fault string) *Error {
	want := TypeJSON
	switch {
	case !op.JSON:
		want = typeForm
	case op.Multipart:
		want += " or " + typeForm
	}
	hint := ""
	if op.JSON && fault == "is "+typeURLEncoded {
		hint = "; curl -d sends that type by default: add -H 'Content-Type: application/json'"
	}
	e := UnsupportedMediaType(want)
	e.Message = fmt.Sprintf("The request's Content-Type %s; send %s%s.", fault, want, hint)
	return e
}

// maxBoundary is the longest boundary, in bytes (RFC 2046, section 5.1.1).
const maxBoundary = 70

// formBoundary returns the boundary among the parameters of multipart/form-data.
func formBoundary(params []mediaParam) (boundary string, e *Error) {
	malformed := InvalidRequest("", fmt.Sprintf("The Content-Type of a multipart form needs one boundary, of 1 to %d letters, digits or '()+_,-./:=?.", maxBoundary))
	for _, p := range params {
		switch {
		case p.name == "boundary" && boundary == "" && isBoundary(p.value):
			boundary = p.value
		case p.name == "charset" && isUTF8([]mediaParam{p}):
		case strings.HasPrefix(p.name, "boundary"): // a second one, and boundary*0 (RFC 2231)
			return "", malformed
		default:
			return "", InvalidRequest("", fmt.Sprintf("The Content-Type of a multipart form has a parameter that is not supported here (%s).", excerpt(p.name)))
		}
	}
	if boundary == "" {
		return "", malformed
	}
	return boundary, nil
}

// isBoundary reports whether v is a boundary by RFC 2046, section 5.1.1. Spaces, which it allows inside one, are not
// taken: no client sends them, and readers differ in where they trim them.
func isBoundary(v string) bool {
	if v == "" || len(v) > maxBoundary {
		return false
	}
	for i := range len(v) {
		if c := v[i]; !isAlphanumeric(c) && !strings.ContainsRune("'()+_,-./:=?", rune(c)) {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool { return c|0x20-'a' < 26 || c-'0' < 10 }

// mediaParam is a parameter of a media type. Its name is in lower case.
type mediaParam struct{ name, value string }

const (
	// maxMedia is the longest media type that is read, with its parameters, in bytes.
	maxMedia = 512
	// maxMediaParams is how many parameters it may have. Two are the most that clients send.
	maxMediaParams = 8
)

// parseMedia reads a media type (RFC 9110, section 8.3.1), which it returns in lower case. Quoted values must hold
// neither quotes nor backslashes, in whose reading parsers differ.
func parseMedia(v string) (media string, params []mediaParam, ok bool) {
	if len(v) > maxMedia {
		return "", nil, false
	}
	media, rest, _ := strings.Cut(v, ";")
	media = strings.ToLower(trimOWS(media))
	if kind, sub, found := strings.Cut(media, "/"); !found || !isToken(kind) || !isToken(sub) {
		return "", nil, false
	}
	for rest = trimOWS(rest); rest != ""; rest = trimOWS(rest) {
		if rest[0] == ';' { // nothing between two, or behind the last
			rest = rest[1:]
			continue
		}
		var p mediaParam
		if p, rest, ok = cutParam(rest); !ok || len(params) == maxMediaParams {
			return "", nil, false
		}
		p.name = strings.ToLower(p.name)
		params = append(params, p)
	}
	return media, params, true
}

// cutParam reads name=token or name="text" at the beginning of s, which must end there or at a semicolon, and returns
// what follows that.
func cutParam(s string) (p mediaParam, rest string, ok bool) {
	name, s, found := strings.Cut(s, "=")
	if !found || !isToken(name) {
		return p, "", false
	}
	if strings.HasPrefix(s, `"`) {
		value, after, closed := strings.Cut(s[1:], `"`)
		if after = trimOWS(after); !closed || !isQuotable(value) || after != "" && after[0] != ';' {
			return p, "", false
		}
		return mediaParam{name, value}, strings.TrimPrefix(after, ";"), true
	}
	value, rest, _ := strings.Cut(s, ";")
	value = trimOWS(value)
	return mediaParam{name, value}, rest, isToken(value)
}

// isQuotable reports whether v may stand between quotes without an escape.
func isQuotable(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c == '"' || c == '\\' || c == 0x7f {
			return false
		}
	}
	return true
}

// isToken reports whether v is a token of RFC 9110, section 5.6.2.
func isToken(v string) bool {
	for i := range len(v) {
		if c := v[i]; !isAlphanumeric(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return v != ""
}

func trimOWS(v string) string { return strings.Trim(v, " \t") }
