package openai

import (
	"errors"
	"strings"
	"testing"
)

// TestRequestBodyType: by which declared type a body is read as what, and what a client is told otherwise.
func TestRequestBodyType(t *testing.T) {
	const ok = 200
	type want struct {
		status   int
		boundary string // of a form
		says     string
	}
	chat, edits, audio, ollama := OpChatCompletions, OpImagesEdits, OpAudioTranscriptions, OpOllamaEmbed
	json, form := want{status: ok}, func(boundary string) want { return want{status: ok, boundary: boundary} }
	for _, c := range []struct {
		op    OpID
		value string
		want
	}{
		{chat, "application/json", json},
		{chat, "", json},
		{chat, " ", json},
		{chat, "Application/JSON ; Charset=UTF-8", json},
		{chat, `application/json;charset="utf-8";`, json},
		{chat, "application/json; charset=us-ascii; profile=x", json},
		{chat, "application/vnd.api+json", json},
		{chat, "text/json", json},
		{chat, "text/plain;charset=utf8", json},
		{chat, "application/octet-stream", json},
		{chat, "application/json; charset=utf-7", want{415, "", "charset"}},
		{chat, "application/json; charset=utf-8; charset=utf-7", want{415, "", "charset"}},
		{chat, "application/json; charset*=us-ascii''utf-7", want{415, "", "charset"}},
		{chat, "application/json; charset*0=utf-7", want{415, "", "charset"}},
		{chat, "text/plain; charset=iso-8859-1", want{415, "", "charset"}},
		{chat, "application/x-www-form-urlencoded", want{415, "", "-H 'Content-Type: application/json'"}},
		{chat, "multipart/form-data; boundary=b", want{415, "", "send application/json."}},
		{chat, "application/x-ndjson", want{415, "", "is application/x-ndjson; send application/json."}},
		{chat, "application/json-seq", want{415, "", "send application/json."}},
		{chat, "text/vnd+json", want{415, "", "send application/json."}},
		{chat, "application/json, application/x-www-form-urlencoded", want{415, "", "malformed"}},
		{chat, `application/json; charset="utf\-7"`, want{415, "", "malformed"}},
		{chat, `application/json; charset="utf-8`, want{415, "", "malformed"}},
		{chat, `application/json; charset="utf-8"; charset`, want{415, "", "malformed"}},
		{chat, "application/json; charset =utf-7", want{415, "", "malformed"}},
		{chat, "json", want{415, "", "malformed"}},
		{chat, "application/json" + strings.Repeat(";", 600), want{415, "", "malformed"}},
		{chat, "application/json" + strings.Repeat("; a=b", 9), want{415, "", "malformed"}},

		{ollama, "application/x-www-form-urlencoded", json},
		{ollama, "application/x-www-form-urlencoded; charset=utf-7", want{415, "", "charset"}},
		{ollama, "multipart/form-data; boundary=b", want{415, "", "send application/json."}},

		{edits, "application/json", json},
		{edits, "text/plain", json},
		{edits, "multipart/form-data; boundary=b", form("b")},
		{edits, "application/x-www-form-urlencoded", want{415, "", "application/json or multipart/form-data"}},

		{audio, "multipart/form-data; boundary=b", form("b")},
		{audio, `Multipart/Form-Data;Boundary="--=(a) b"`, want{400, "", "boundary"}},
		{audio, `multipart/form-data; charset=UTF-8; boundary="----=_Part_1_2.3"`, form("----=_Part_1_2.3")},
		{audio, "multipart/form-data; boundary=" + strings.Repeat("b", maxBoundary), form(strings.Repeat("b", maxBoundary))},
		{audio, "multipart/form-data; boundary=" + strings.Repeat("b", maxBoundary+1), want{400, "", "boundary"}},
		{audio, "multipart/form-data", want{400, "", "boundary"}},
		{audio, `multipart/form-data; boundary=""`, want{400, "", "boundary"}},
		{audio, "multipart/form-data; boundary=a; boundary=b", want{400, "", "boundary"}},
		{audio, "multipart/form-data; boundary=a; BOUNDARY=a", want{400, "", "boundary"}},
		{audio, "multipart/form-data; boundary=a; boundary*=utf-8''b", want{400, "", "boundary"}},
		{audio, "multipart/form-data; boundary*0=a; boundary*1=b", want{400, "", "boundary"}},
		{audio, `multipart/form-data; boundary="a "`, want{400, "", "boundary"}},
		{audio, `multipart/form-data; boundary="a;b"`, want{400, "", "boundary"}},
		{audio, `multipart/form-data; boundary="ä"`, want{400, "", "boundary"}},
		{audio, "multipart/form-data; boundary=a; charset=utf-7", want{400, "", "charset"}},
		{audio, "multipart/form-data; boundary=a; type=x", want{400, "", "(type)"}},
		{audio, `multipart/form-data; boundary="a\b"`, want{415, "", "malformed"}},
		{audio, "multipart/form-data; boundary=a, multipart/form-data; boundary=b", want{415, "", "malformed"}},
		{audio, "multipart/mixed; boundary=b", want{415, "", "is multipart/mixed; send multipart/form-data."}},
		{audio, "application/json", want{415, "", "is application/json; send multipart/form-data."}},
		{audio, "", want{415, "", "is missing; send multipart/form-data."}},
	} {
		op, _ := c.op.Operation()
		got, boundary, err := RequestBodyType(&op, []string{c.value})
		e, _ := errors.AsType[*Error](err)
		switch {
		case c.status == ok && (err != nil || got != (c.boundary != "") || boundary != c.boundary):
			t.Errorf("%s of %q: form %v, boundary %q, %v", op.Name, c.value, got, boundary, err)
		case c.status != ok && (e == nil || e.Status != c.status || !strings.Contains(e.Message, c.says)):
			t.Errorf("%s of %q: %v", op.Name, c.value, err)
		}
	}
	op, _ := chat.Operation()
	if got, _, err := RequestBodyType(&op, nil); got || err != nil {
		t.Errorf("no header: %v", err)
	}
	_, _, err := RequestBodyType(&op, []string{TypeJSON, TypeJSON})
	if e, _ := errors.AsType[*Error](err); e == nil || e.Status != 400 || !strings.Contains(e.Message, "more than one") {
		t.Errorf("two headers: %v", err)
	}
}
