package openai

import (
	"bytes"
	"errors"
	"mime/multipart"
	"runtime"
	"strings"
	"testing"
)

const formType = "multipart/form-data; boundary=b0undary"

// formOf joins parts, each a header block and a body.
func formOf(parts ...string) []byte {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("--b0undary\r\n" + p + "\r\n")
	}
	return []byte(b.String() + "--b0undary--\r\n")
}

func plainField(name, value string) string {
	return `Content-Disposition: form-data; name="` + name + "\"\r\n\r\n" + value
}

func filePart(content string) string {
	return "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n" + content
}

func TestParseMultipartModel(t *testing.T) {
	big := strings.Repeat("RIFF\r\n--b0undar\r\n", 30<<20/16)
	for name, c := range map[string]struct {
		body   []byte
		model  string
		stream bool
	}{
		"model first":        {formOf(plainField("model", "whisper-1"), filePart("RIFF")), "whisper-1", false},
		"model behind 30 MB": {formOf(filePart(big), plainField("model", "whisper-1"), plainField("stream", "true")), "whisper-1", true},
		"no model":           {formOf(filePart("RIFF"), plainField("stream", "False")), "", false},
		"lists":              {formOf(plainField("timestamp_granularities[]", "word"), plainField("timestamp_granularities[]", "segment"), plainField("model", "m")), "m", false},
		"unquoted name":      {formOf("Content-Disposition: form-data; name=model\r\n\r\nm"), "m", false},
		"a preamble":         {append([]byte("hello\r\n"), formOf(plainField("model", "m"))...), "m", false},
	} {
		model, stream, err := ParseMultipartModel(formType, c.body)
		if err != nil || model != c.model || stream != c.stream {
			t.Errorf("%s: %q %t %v", name, model, stream, err)
		}
	}
	body := formOf(filePart(big), plainField("model", "m"))
	if n := allocated(func() { _, _, _ = ParseMultipartModel(formType, body) }); n > 64<<10 {
		t.Errorf("%d bytes allocated for a form of 30 MB", n)
	}
}

// allocated returns how many bytes f allocates, with what else the process does meanwhile.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestParseMultipartModelRefuses(t *testing.T) {
	many := make([]string, maxParts+1)
	for i := range many {
		many[i] = plainField("x", "y")
	}
	for name, c := range map[string]struct {
		contentType string
		body        []byte
		status      int
		param       string
	}{
		"JSON":                 {"application/json", []byte("{}"), 415, ""},
		"no type":              {"", nil, 415, ""},
		"no boundary":          {"multipart/form-data", formOf(), 400, ""},
		"boundary too long":    {"multipart/form-data; boundary=" + strings.Repeat("b", 71), formOf(), 400, ""},
		"empty":                {formType, nil, 400, ""},
		"cut":                  {formType, formOf(plainField("model", "m"))[:60], 400, ""},
		"no last boundary":     {formType, bytes.TrimSuffix(formOf(plainField("model", "m"), filePart("x")), []byte("--b0undary--\r\n")), 400, ""},
		"two models":           {formType, formOf(plainField("model", "a"), plainField("model", "a")), 400, "model"},
		"another spelling":     {formType, formOf(plainField("Model", "a")), 400, "model"},
		"model is a file":      {formType, formOf("Content-Disposition: form-data; name=\"model\"; filename=\"m\"\r\n\r\na"), 400, "model"},
		"model in base64":      {formType, formOf("Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64\r\n\r\nbQ=="), 400, "model"},
		"model too long":       {formType, formOf(plainField("model", strings.Repeat("m", 1<<20))), 400, "model"},
		"model empty":          {formType, formOf(plainField("model", "")), 400, "model"},
		"model over two lines": {formType, formOf(plainField("model", "a\r\nb")), 400, "model"},
		"stream is a word":     {formType, formOf(plainField("model", "m"), plainField("stream", "maybe")), 400, "stream"},
		"two streams":          {formType, formOf(plainField("stream", "true"), plainField("stream", "true")), 400, "stream"},
		"two dispositions":     {formType, formOf("Content-Disposition: form-data; name=\"x\"\r\n" + plainField("model", "m")), 400, ""},
		"extended name":        {formType, formOf("Content-Disposition: form-data; name*=utf-8''model\r\n\r\nm"), 400, ""},
		"not form-data":        {formType, formOf("Content-Disposition: attachment; name=\"model\"\r\n\r\nm"), 400, ""},
		"no name":              {formType, formOf("Content-Disposition: form-data\r\n\r\nm"), 400, ""},
		"too many parts":       {formType, formOf(many...), 400, ""},
	} {
		_, _, err := ParseMultipartModel(c.contentType, c.body)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Status != c.status || e.Param != c.param {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRewriteMultipartModel(t *testing.T) {
	body := formOf(filePart("whisper-1\r\n\r\nwhisper-1"), plainField("model", "whisper-1"), plainField("prompt", "whisper-1"))
	out, err := RewriteMultipartModel(formType, body, "large-v3")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(string(body), plainField("model", "whisper-1"), plainField("model", "large-v3"), 1); string(out) != want {
		t.Errorf("got %q", out)
	}
	if same, err := RewriteMultipartModel(formType, body, "whisper-1"); err != nil || &same[0] != &body[0] {
		t.Errorf("nothing to change, but copied (%v)", err)
	}
	if _, err := RewriteMultipartModel(formType, body, "a\r\n--b0undary--"); err == nil {
		t.Error("a name broke out of its part")
	}
}

// FuzzMultipartModel: what passes has exactly one readable model for the standard library's whole form reader too, and
// a rewrite changes that and nothing else.
func FuzzMultipartModel(f *testing.F) {
	f.Add(formType, formOf(plainField("model", "m"), filePart("RIFF"), plainField("stream", "true")))
	f.Add(formType, formOf("content-disposition: form-data; name=model; x=\"y\"\r\n\r\nm"))
	f.Add("multipart/form-data; boundary=\"a b\"", []byte("--a b\nContent-Disposition: form-data; name=\"model\"\n\nm\n--a b--"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		model, _, err := ParseMultipartModel(contentType, body)
		if err != nil {
			if _, ok := err.(*Error); !ok {
				t.Fatalf("%T", err)
			}
			return
		}
		boundary, e := formBoundary(contentType)
		if e != nil {
			t.Fatal(e)
		}
		form, err := multipart.NewReader(bytes.NewReader(body), boundary).ReadForm(1 << 20)
		if err != nil {
			return // limits of its own
		}
		got := form.Value["model"]
		if (model == "") != (len(got) == 0) || len(got) > 1 || (len(got) == 1 && got[0] != model) || len(form.File["model"]) > 0 {
			t.Fatalf("model is %q here and %q for the standard library", model, got)
		}
		if model == "" {
			return
		}
		out, err := RewriteMultipartModel(contentType, body, "other")
		if err != nil {
			return // odd headers: refused, never wrong
		}
		if after, _, err := ParseMultipartModel(contentType, out); err != nil || after != "other" {
			t.Fatalf("rewritten to %q, %v", after, err)
		}
	})
}
