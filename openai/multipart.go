package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strings"
)

// maxParts is how many parts a form may have. The API's largest forms (16 images, some fields) have a few dozen.
const maxParts = 256

// ParseMultipartModel reads the fields of a multipart/form-data request that route it: `model` (empty if there is
// none) and `stream`. They may stand anywhere, behind files of any size too; files are stepped over, not copied. Any
// error is an *Error with status 400 (415 for another content type).
//
// As in JSON, a routed field may appear once and only in its exact spelling; beyond that, whatever one parser could
// read as a field and another as something else is refused.
func ParseMultipartModel(contentType string, body []byte) (model string, stream bool, err error) {
	boundary, e := formBoundary(contentType)
	if e != nil {
		return "", false, e
	}
	f := form{r: multipart.NewReader(bytes.NewReader(body), boundary)}
	if e := f.read(); e != nil {
		return "", false, e
	}
	return f.model, f.stream, nil
}

// formBoundary returns the boundary of a multipart/form-data content type.
func formBoundary(contentType string) (string, *Error) {
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil || mediaType != "multipart/form-data" {
		return "", UnsupportedMediaType("multipart/form-data")
	}
	b := params["boundary"]
	if b == "" || len(b) > 70 { // RFC 2046 section 5.1.1
		return "", InvalidRequest("", "the multipart form's boundary must have 1 to 70 characters")
	}
	return b, nil
}

type form struct {
	r                    *multipart.Reader
	model                string
	stream               bool
	hasModel, hasStreams bool
}

func (f *form) read() *Error {
	for parts := 0; ; parts++ {
		part, err := f.r.NextRawPart()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return InvalidRequest("", "the multipart form is malformed or ends too early")
		case parts == maxParts:
			return InvalidRequest("", fmt.Sprintf("the multipart form has more than %d parts", maxParts))
		}
		if e := f.part(part); e != nil {
			return e
		}
	}
}

func (f *form) part(part *multipart.Part) *Error {
	name, isFile, e := partName(part)
	if e != nil {
		return e
	}
	switch {
	case strings.EqualFold(name, "model"):
		value, e := f.field(part, "model", name, isFile, &f.hasModel)
		if e != nil {
			return e
		}
		f.model = value
		return checkModel(value)
	case strings.EqualFold(name, "stream"):
		value, e := f.field(part, "stream", name, isFile, &f.hasStreams)
		if e != nil {
			return e
		}
		return formBool(value, &f.stream)
	}
	return nil
}

// partName returns the part's field name, and whether it claims to be a file.
func partName(part *multipart.Part) (name string, isFile bool, e *Error) {
	malformed := InvalidRequest("", "a part of the multipart form needs exactly one plain Content-Disposition: form-data with a name")
	all := part.Header["Content-Disposition"]
	if len(all) != 1 || strings.Contains(all[0], "*=") { // extended parameters are read by some parsers only
		return "", false, malformed
	}
	kind, params, err := mime.ParseMediaType(all[0])
	if err != nil || kind != "form-data" {
		return "", false, malformed
	}
	_, isFile = params["filename"]
	if name = params["name"]; name == "" {
		return "", false, malformed
	}
	return name, isFile, nil
}

// field reads the value of a routed field.
func (f *form) field(part *multipart.Part, name, written string, isFile bool, seen *bool) (string, *Error) {
	switch {
	case written != name:
		return "", InvalidRequest(name, name+" must be spelled exactly so, in lower case")
	case *seen:
		return "", InvalidRequest(name, name+" appears more than once")
	case isFile:
		return "", InvalidRequest(name, name+" must be a plain field, not a file")
	}
	*seen = true
	switch strings.ToLower(part.Header.Get("Content-Transfer-Encoding")) {
	case "", "7bit", "8bit", "binary":
	default:
		return "", InvalidRequest(name, name+" must not have a transfer encoding")
	}
	value, err := io.ReadAll(io.LimitReader(part, MaxModelLength+1))
	if err != nil {
		return "", InvalidRequest("", "the multipart form is malformed or ends too early")
	}
	return string(value), nil
}

// formBool reads a boolean as the form parsers of common engines do.
func formBool(value string, v *bool) *Error {
	switch strings.ToLower(value) {
	case "true", "1", "t", "yes", "y", "on":
		*v = true
	case "false", "0", "f", "no", "n", "off", "":
		*v = false
	default:
		return InvalidRequest("stream", "stream must be true or false")
	}
	return nil
}

// RewriteMultipartModel returns the form with the value of its model field replaced, every other byte as it was. The
// form must have passed ParseMultipartModel; one without a model field is returned as it is, and so is one that has
// this model already.
func RewriteMultipartModel(contentType string, body []byte, model string) ([]byte, error) {
	old, _, err := ParseMultipartModel(contentType, body)
	if err != nil || old == "" || old == model {
		return body, err
	}
	boundary, e := formBoundary(contentType)
	if e != nil {
		return nil, e
	}
	at, ok := modelValue(body, boundary, old)
	if !ok {
		return nil, errors.New("the multipart form's model field was not found where it was read")
	}
	out := make([]byte, 0, len(body)+len(model)-len(old))
	out = append(append(append(out, body[:at]...), model...), body[at+len(old):]...)
	if got, _, err := ParseMultipartModel(contentType, out); err != nil || got != model {
		return nil, errors.New("the multipart form can't take the new model name")
	}
	return out, nil
}

// modelValue finds the offset of the model field's value: the value, between a header that names the field and a
// delimiter. The caller reads the result again and compares, so that a wrong find can only fail.
func modelValue(body []byte, boundary, value string) (at int, ok bool) {
	for _, eol := range [...]string{"\r\n", "\n"} {
		needle := []byte(eol + eol + value + eol + "--" + boundary)
		for from := 0; ; {
			i := bytes.Index(body[from:], needle)
			if i < 0 {
				break
			}
			i += from
			header := body[max(0, i-1024):i]
			if d := bytes.LastIndex(header, []byte("--"+boundary)); d >= 0 {
				header = header[d:]
			}
			if bytes.Contains(header, []byte(`name="model"`)) || bytes.Contains(header, []byte(`name=model`)) {
				return i + len(eol) + len(eol), true
			}
			from = i + 1
		}
	}
	return 0, false
}
