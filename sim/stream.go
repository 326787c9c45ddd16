package sim

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// Content types of streams.
const (
	sseType    = "text/event-stream"
	ndjsonType = "application/x-ndjson"
)

// lineEnd is how the knobs want lines of the stream to end.
func (x *exchange) lineEnd() string {
	switch {
	case x.k.crlf, x.k.crSplit:
		return "\r\n"
	case x.k.cr:
		return "\r"
	}
	return "\n"
}

// prologue writes what the knobs put before the first event.
func (x *exchange) prologue() error {
	x.eol = x.lineEnd()
	var b []byte
	if x.k.bom {
		b = append(b, "\ufeff"...)
	}
	if x.k.retryField {
		b = append(append(append(b, "retry: 3000"...), x.eol...), x.eol...)
	}
	return x.writePieces(b)
}

// event writes one server-sent event and flushes it. name may be empty; data must hold no line break.
func (x *exchange) event(name string, data []byte) error {
	if x.eol == "" {
		x.eol = x.lineEnd()
	}
	b := x.out[:0]
	if x.k.comments {
		b = append(append(append(b, ": sim"...), x.eol...), x.eol...)
	}
	if name != "" {
		b = append(append(append(b, "event: "...), name...), x.eol...)
	}
	if x.k.ids {
		b = append(strconv.AppendInt(append(b, "id: "...), int64(x.events), 10), x.eol...)
	}
	b = append(b, "data:"...)
	if !x.k.noSpace {
		b = append(b, ' ')
	}
	b = append(append(append(b, data...), x.eol...), x.eol...)
	x.out = b
	x.events++
	return x.writePieces(b)
}

// done writes the [DONE] line as the knobs want it.
func (x *exchange) done() error {
	switch x.k.done {
	case "none":
		return nil
	case "unterminated":
		return x.writePieces([]byte("data: [DONE]"))
	case "space":
		return x.event("", []byte("[DONE] "))
	}
	return x.event("", []byte("[DONE]"))
}

// line writes one line of newline-delimited JSON and flushes it.
func (x *exchange) line(data []byte) error {
	if x.eol == "" {
		x.eol = x.lineEnd()
	}
	x.out = append(append(x.out[:0], data...), x.eol...)
	return x.writePieces(x.out)
}

// writePieces writes b in one piece, or in those that the knobs split and cr_split make of it.
func (x *exchange) writePieces(b []byte) error {
	for len(b) > 0 {
		n := len(b)
		if x.k.split > 0 {
			n = min(n, x.k.split)
		}
		if x.k.crSplit {
			if i := bytes.IndexByte(b[:n], '\r'); i >= 0 {
				n = i + 1
			}
		}
		if err := x.write(b[:n]); err != nil {
			return err
		}
		if err := x.flush(); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// appendString appends s as a JSON string. Text that needs no escape, which is nearly all, costs one copy.
func appendString[T string | []byte](b []byte, s T) []byte {
	if plainJSON(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	var w bytes.Buffer
	e := json.NewEncoder(&w)
	e.SetEscapeHTML(false)
	if err := e.Encode(string(s)); err != nil {
		panic(err) // a string
	}
	return append(b, bytes.TrimSuffix(w.Bytes(), []byte("\n"))...)
}

func plainJSON[T string | []byte](s T) bool {
	ascii := true
	for i := range len(s) {
		c := s[i]
		if c < 0x20 || c == '"' || c == '\\' {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.ValidString(string(s))
}

// marshal renders v without escaping for HTML.
func marshal(v any) []byte {
	var w bytes.Buffer
	e := json.NewEncoder(&w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // our own maps and structs
	}
	return bytes.TrimSuffix(w.Bytes(), []byte("\n"))
}

// id returns an identifier that is the same in every run of the same sequence of requests.
func (x *exchange) id(prefix string) string {
	x.ids++
	return prefix + "sim" + strconv.FormatInt(x.rec.ID, 36) + "x" + strconv.Itoa(x.ids)
}

func unixNow() int64 { return time.Now().Unix() }
