package openai

import (
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxFormName is the longest name of a field, in bytes.
	maxFormName = 128
	// maxFileName is the longest name of a file, in bytes: file systems have 255, which grow threefold where a client
	// writes %C3%BC for a letter.
	maxFileName = 1024
)

// parsePartHeader reads the header of a part. Its lines end in CRLF, the last excepted. fault says what is wrong with it;
// the part then has a name if it could be read.
//
// Read are Content-Disposition, with name and filename, and of a file Content-Type, without its parameters. Accepted and
// dropped is what clients write there beside: Content-Length, Content-Transfer-Encoding where it names none, and the
// Content-Type of a plain field that is UTF-8 text. All else is refused.
func parsePartHeader(header string) (part formPart, fault string) {
	var seen [4]bool
	var media string
	for line := range strings.SplitSeq(header, "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) || strings.ContainsFunc(value, unicode.IsControl) {
			return part, "a line of its header is malformed"
		}
		kind, fault := headerKind(name)
		if fault == "" && seen[kind] {
			fault = "it has the header " + excerpt(name) + " twice"
		}
		if fault != "" {
			return part, fault
		}
		seen[kind] = true
		switch value = trimOWS(value); kind {
		case partDisposition:
			fault = part.disposition(value)
		case partType:
			media = value
		case partEncoding:
			fault = encodingFault(value)
		}
		if fault != "" {
			return part, fault
		}
	}
	switch {
	case !seen[partDisposition]:
		return part, "it has no Content-Disposition header"
	case !seen[partType]:
		if part.file {
			part.media = "application/octet-stream"
		}
		return part, ""
	}
	return part, part.setType(media)
}

// The headers of a part.
const (
	partDisposition = iota
	partType
	partEncoding
	partLength
)

func headerKind(name string) (kind int, fault string) {
	switch strings.ToLower(name) {
	case "content-disposition":
		return partDisposition, ""
	case "content-type":
		return partType, ""
	case "content-transfer-encoding":
		return partEncoding, ""
	case "content-length":
		return partLength, ""
	}
	return 0, "the header " + excerpt(name) + " is not supported in a part"
}

// encodingFault refuses an encoding (RFC 7578, section 4.7): some readers undo it, others don't.
func encodingFault(value string) string {
	switch strings.ToLower(value) {
	case "7bit", "8bit", "binary":
		return ""
	}
	return "a Content-Transfer-Encoding is not supported; send the bytes as they are"
}

// disposition reads the value of Content-Disposition: form-data with the name of the field, and of a file its own. Each
// is a token or stands between quotes, without backslash and semicolon, at which readers part.
func (part *formPart) disposition(value string) (fault string) {
	kind, rest, _ := strings.Cut(value, ";")
	if !strings.EqualFold(trimOWS(kind), "form-data") {
		return "its Content-Disposition is not form-data"
	}
	hasName := false
	for more := true; more; {
		var p mediaParam
		var ok bool
		if p, rest, more, ok = cutPlainParam(rest); !ok {
			return `its Content-Disposition must have only name="..." and, for a file, filename="...", without backslashes or semicolons`
		}
		switch {
		case p.name == "name" && !hasName:
			if fault := formNameFault(p.value); fault != "" {
				return fault
			}
			part.name, hasName = p.value, true
		case p.name == "filename" && !part.file:
			if part.fileName, fault = cleanFileName(p.value); fault != "" {
				return fault
			}
			part.file = true
		case p.name == "name" || p.name == "filename":
			return "its Content-Disposition has the parameter " + p.name + " twice"
		default:
			return "its Content-Disposition has the parameter " + excerpt(p.name) + `, which is not supported; only name="..." and filename="..." are`
		}
	}
	if !hasName {
		return "its Content-Disposition has no name"
	}
	return ""
}

// cutPlainParam reads a parameter at the beginning of s and the semicolon behind it; more: there was one.
func cutPlainParam(s string) (p mediaParam, rest string, more, ok bool) {
	field, rest, more := strings.Cut(s, ";")
	name, value, found := strings.Cut(trimOWS(field), "=")
	if !found || !isToken(name) {
		return p, "", false, false
	}
	quoted, ok := strings.CutPrefix(value, `"`)
	if !ok {
		return mediaParam{name, value}, rest, more, isToken(value)
	}
	value, ok = strings.CutSuffix(quoted, `"`)
	return mediaParam{name, value}, rest, more, ok && isQuotable(value)
}

// formNameFault says what is wrong with the name of a field: it has letters, digits, '_', '-' and '.', and may have
// brackets behind them, as in image[] and chunking_strategy[type]. What else a name may hold is read differently:
// percent signs, quotes and letters beyond ASCII, and brackets that don't match.
func formNameFault(name string) string {
	if name == "" || len(name) > maxFormName {
		return fmt.Sprintf("a field's name must be 1 to %d bytes long", maxFormName)
	}
	base, indices := cutIndices(name)
	plain := isPlainName(base) && base != ""
	for indices != "" {
		index, after, ok := strings.Cut(indices[1:], "]")
		plain = plain && ok && isPlainName(index) && (after == "" || after[0] == '[')
		if !plain {
			break
		}
		indices = after
	}
	if !plain || strings.Contains(name, "__proto__") { // which JavaScript reads as no field
		return "a field's name must consist of letters, digits, '_', '-' and '.', optionally followed by brackets"
	}
	return ""
}

// cutIndices cuts a name before its first bracket.
func cutIndices(name string) (base, indices string) {
	if i := strings.IndexByte(name, '['); i >= 0 {
		return name[:i], name[i:]
	}
	return name, ""
}

func isPlainName(v string) bool {
	for i := range len(v) {
		if c := v[i]; !isAlphanumeric(c) && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// cleanFileName returns what goes on of a file's name: its last element, which is all that a receiver may use (RFC 7578,
// section 4.2). An empty name makes a file for some readers, and a plain field for others.
func cleanFileName(name string) (clean, fault string) {
	if len(name) > maxFileName {
		return "", fmt.Sprintf("its filename is longer than %d bytes", maxFileName)
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, isLineOrControl) {
		return "", "its filename must be UTF-8 without control characters"
	}
	if clean = path.Base(name); name == "" || clean == "/" || strings.Trim(clean, ". ") == "" {
		return "", "its filename names no file"
	}
	return clean, ""
}

// isLineOrControl reports whether some reader could take r for the end of a line: Python's splitlines takes U+0085,
// U+2028 and U+2029, too.
func isLineOrControl(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp)
}

// setType reads the value of Content-Type. A file keeps its media type, without parameters. A plain field has none that
// goes on, as some readers take a field with one for a file.
func (part *formPart) setType(value string) (fault string) {
	media, params, ok := parseMedia(value)
	switch {
	case !ok:
		return "its Content-Type is malformed"
	case strings.HasPrefix(media, "multipart/"), strings.HasPrefix(media, "message/"), media == "application/x-www-form-urlencoded":
		return "its Content-Type is a form or message of its own, which is not supported"
	case part.file:
		part.media = media
		return ""
	case media != "text/plain" && media != TypeJSON:
		return "its Content-Type is that of a file, but it has no filename"
	}
	part.media = ""
	for _, p := range params {
		if p.name == "charset" && isCharset(p.value, "iso-8859-1") {
			part.ascii = true // Apache's HttpClient declares it unasked
		} else if !isUTF8([]mediaParam{p}) {
			return "its Content-Type declares a charset other than utf-8"
		}
	}
	return ""
}
