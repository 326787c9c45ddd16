package openai

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const testBoundary = "b0undary"

// formOf joins parts, each a header block and a body.
func formOf(parts ...string) []byte {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("--b0undary\r\n" + p + "\r\n")
	}
	return []byte(b.String() + "--b0undary--\r\n")
}

func plainField(name, value string) string {
	return disposed(`form-data; name="`+name+`"`, value)
}

func filePart(content string) string { return fileNamed("file", "a.wav", content) }

func fileNamed(name, file, content string) string {
	return "Content-Disposition: form-data; name=\"" + name + "\"; filename=\"" + file + "\"\r\nContent-Type: audio/wav\r\n\r\n" + content
}

// disposed is a part with that Content-Disposition.
func disposed(disposition, value string) string {
	return "Content-Disposition: " + disposition + "\r\n\r\n" + value
}

// withHeader is a part with one more header.
func withHeader(header, part string) string { return header + "\r\n" + part }

// readParts reads a form with the standard library: each part as name|filename|type|content.
func readParts(t *testing.T, boundary string, body []byte) (parts []string) {
	t.Helper()
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := r.NextRawPart()
		if err == io.EOF {
			return parts
		}
		if err != nil {
			t.Fatalf("the standard library: %v in %q", err, body)
		}
		content, err := io.ReadAll(part)
		if err != nil {
			t.Fatalf("the standard library: %v in %q", err, body)
		}
		parts = append(parts, strings.Join([]string{part.FormName(), part.FileName(), part.Header.Get("Content-Type"), string(content)}, "|"))
	}
}

// anew is what Write makes of a form, as a provider gets it.
func anew(f *Form, model string) []byte { return bytes.Join(f.Write(model), nil) }

// TestFormIsWrittenAnew: what clients write, and what a provider is sent of it.
func TestFormIsWrittenAnew(t *testing.T) {
	const model = "model|||new"
	for name, c := range map[string]struct {
		body   []byte
		stream bool
		want   []string
	}{
		"curl, Python, Node.js": {formOf(plainField("model", "m"), filePart("RIFF")), false, []string{model, "file|a.wav|audio/wav|RIFF"}},
		"aiohttp": {formOf(
			withHeader("Content-Type: text/plain; charset=utf-8", plainField("model", "m")),
			withHeader("Content-Length: 4\r\nContent-Type: audio/wav", disposed(`form-data; name="file"; filename="%22%C3%BC.wav"`, "RIFF")),
		), false, []string{model, "file|%22%C3%BC.wav|audio/wav|RIFF"}},
		"Apache HttpClient": {formOf(
			withHeader("Content-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit", plainField("model", "m")),
			withHeader("Content-Transfer-Encoding: binary", filePart("RIFF")),
		), false, []string{model, "file|a.wav|audio/wav|RIFF"}},
		".NET": {formOf(
			withHeader("Content-Type: text/plain; charset=utf-8", disposed("form-data; name=model", "m")),
			disposed("form-data; name=file; filename=a.wav", "RIFF"),
		), false, []string{model, "file|a.wav|application/octet-stream|RIFF"}},
		"a browser":             {formOf(plainField("model", "m"), fileNamed("file", "b%22ü x%0D%0A.wav", "RIFF")), false, []string{model, "file|b%22ü x%0D%0A.wav|audio/wav|RIFF"}},
		"a path":                {formOf(plainField("model", "m"), fileNamed("file", "/tmp/../a.wav", "")), false, []string{model, "file|a.wav|audio/wav|"}},
		"lists":                 {formOf(plainField("model", "m"), plainField("include[]", "a"), plainField("include[]", "b")), false, []string{model, "include[]|||a", "include[]|||b"}},
		"files of one name":     {formOf(fileNamed("image", "a", "1"), plainField("model", "m"), fileNamed("image", "b", "2")), false, []string{"image|a|audio/wav|1", model, "image|b|audio/wav|2"}},
		"nested":                {formOf(plainField("model", "m"), plainField("chunking_strategy[type]", "x"), plainField("chunking_strategy[vad][threshold]", "0.5")), false, []string{model, "chunking_strategy[type]|||x", "chunking_strategy[vad][threshold]|||0.5"}},
		"stream in Python":      {formOf(plainField("model", "m"), plainField("stream", "True")), true, []string{model, "stream|||true"}},
		"no stream, said empty": {formOf(plainField("model", "m"), plainField("stream", "")), false, []string{model, "stream|||false"}},
		"no CRLF at the end":    {bytes.TrimSuffix(formOf(plainField("model", "m")), []byte("\r\n")), false, []string{model}},
		"parameters of a type":  {formOf(plainField("model", "m"), "Content-Disposition: form-data; name=\"f\"; filename=\"f\"\r\nContent-Type: Text/Plain; charset=utf-16; name=\"model\"\r\n\r\nx"), false, []string{model, "f|f|text/plain|x"}},
		"lines in a value":      {formOf(plainField("model", "m"), plainField("prompt", "a\r\n\r\n--b0\n-- \x0b")), false, []string{model, "prompt|||a\r\n\r\n--b0\n-- \x0b"}},
		"other letters":         {formOf(withHeader("content-type: Application/JSON", "CONTENT-DISPOSITION:FORM-DATA;name=\"model\"\r\n\r\nm")), false, []string{model}},
	} {
		f, err := ParseForm(testBoundary, c.body)
		if err != nil || f.Model != "m" || f.Stream != c.stream {
			t.Errorf("%s: %+v %v", name, f, err)
			continue
		}
		body := anew(f, "new")
		if got := readParts(t, f.boundary, body); !slices.Equal(got, c.want) {
			t.Errorf("%s: went on as %q", name, got)
		}
		if bytes.Contains(body, []byte("b0undary")) {
			t.Errorf("%s: the client's boundary went on", name)
		}
	}
}

// TestFormIsNotCopied: large parts are stepped over, and go out as the client's bytes; what Write allocates is what Size
// says.
func TestFormIsNotCopied(t *testing.T) {
	big := strings.Repeat("RIFF\r\n--b0undar\r\n", 4<<20/16)
	body := formOf(filePart(big), plainField("model", "m"), plainField("prompt", strings.Repeat("x", copiedContent)), filePart(big))
	var f *Form
	var pieces [][]byte
	if n := allocated(func() {
		f, _ = ParseForm(testBoundary, body)
		pieces = f.Write("model")
	}); n > 64<<10 {
		t.Errorf("%d bytes allocated for a form of 8 MB", n)
	}
	own := 0
	for i, piece := range pieces {
		if len(piece) < len(big) {
			own += len(piece)
		} else if first, last := bytes.Index(body, piece[:64]), bytes.LastIndex(body, piece); &piece[0] != &body[first] && &piece[0] != &body[last] {
			t.Errorf("piece %d is a copy", i)
		}
	}
	if size := f.Size("model"); len(pieces) != 5 || own > size || own < size-16 {
		t.Errorf("%d pieces, of which %d bytes are new: Size says %d", len(pieces), own, size)
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

// TestFormRefuses: each way in which some reader of forms finds other fields than another one. says is what the client is
// told of it.
func TestFormRefuses(t *testing.T) {
	m := plainField("model", "m")
	many := make([]string, maxParts+1)
	for i := range many {
		many[i] = plainField("x[]", "y")
	}
	framed := func(before, after string) []byte { return []byte(before + string(formOf(m)) + after) }
	for name, c := range map[string]struct {
		body  []byte
		param string
		says  string
	}{
		// The frame.
		"empty":                     {nil, "", "must begin with its boundary"},
		"a preamble":                {framed("hello\r\n", ""), "", "must begin with its boundary"},
		"an empty preamble":         {framed("\r\n", ""), "", "must begin with its boundary"},
		"a boundary in a preamble":  {framed("x--b0undary\r\n"+disposed(`form-data; name="model"`, "other")+"\r\n", ""), "", "must begin with its boundary"},
		"CR CR LF":                  {framed("--b0undary\r\r\n"+disposed(`form-data; name="model"`, "other")+"\r\n", ""), "", "on its own line"},
		"a space behind a boundary": {bytes.Replace(formOf(m), []byte("undary\r\n"), []byte("undary \r\n"), 1), "", "on its own line"},
		"LF":                        {bytes.ReplaceAll(formOf(m), []byte("\r\n"), []byte("\n")), "", "on its own line"},
		"LF before a boundary":      {[]byte("--b0undary\r\n" + m + "\n--b0undary--\r\n"), "model", "holds the boundary"},
		"a boundary in a value":     {formOf(m, plainField("prompt", "x\r\n--b0undaryx")), "", "on its own line"},
		"a boundary in a line":      {formOf(m, plainField("prompt", "x--b0undary")), "prompt", "holds the boundary"},
		"an epilogue":               {framed("", "--b0undary\r\n"+m), "", "nothing may follow"},
		"another line at the end":   {framed("", "\r\n"), "", "nothing may follow"},
		"no parts":                  {[]byte("--b0undary--\r\n"), "", "no parts"},
		"cut":                       {formOf(m)[:60], "", "ends too early"},
		"no last boundary":          {bytes.TrimSuffix(formOf(m, filePart("x")), []byte("--b0undary--\r\n")), "", "ends too early"},
		"no empty line":             {formOf(strings.Replace(m, "\r\n\r\n", "\r\n", 1)), "", "header has no end"},
		"a long header":             {formOf(withHeader("Content-Length: "+strings.Repeat("1", maxPartHeader), m)), "", "header has no end"},
		"too many parts":            {formOf(many...), "", "more than 256 parts"},

		// The headers of a part.
		"no header":           {formOf("\r\n\r\nm"), "", "header is malformed"},
		"no disposition":      {formOf("Content-Type: text/plain\r\n\r\nm"), "", "no Content-Disposition header"},
		"two dispositions":    {formOf(withHeader(`Content-Disposition: form-data; name="x"`, m)), "x", "twice"},
		"a folded line":       {formOf("Content-Disposition: form-data;\r\n name=\"model\"\r\n\r\nm"), "", "Content-Disposition must have"},
		"a folded type":       {formOf("Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain;\r\n charset=utf-7\r\n\r\nm"), "model", "header is malformed"},
		"a bare LF":           {formOf("Content-Length: 1\nContent-Disposition: form-data; name=\"x\"\r\n" + m), "", "header is malformed"},
		"a bare CR":           {formOf("Content-Disposition: form-data; name=\"x\"\r; name=\"model\"\r\n\r\nm"), "", "header is malformed"},
		"NUL":                 {formOf("Content-Disposition: form-data; name=\"model\x00\"\r\n\r\nm"), "", "header is malformed"},
		"a space and a colon": {formOf("Content-Disposition : form-data; name=\"model\"\r\n\r\nm"), "", "header is malformed"},
		"another header":      {formOf(withHeader("X-Name: model", plainField("x", "y"))), "", "X-Name"},
		"base64":              {formOf(withHeader("Content-Transfer-Encoding: base64", m)), "", "Content-Transfer-Encoding"},
		"UTF-7":               {formOf(withHeader("Content-Type: text/plain; charset=utf-7", m)), "model", "charset"},
		"UTF-7 by RFC 2231":   {formOf(withHeader("Content-Type: text/plain; charset*=us-ascii''utf-7", m)), "model", "charset"},
		"Latin letters":       {formOf(withHeader("Content-Type: text/plain; charset=iso-8859-1", plainField("prompt", "ü"))), "prompt", "must be UTF-8"},
		"a file without name": {formOf(withHeader("Content-Type: audio/wav", plainField("file", "RIFF"))), "file", "no filename"},
		"a form in the form":  {formOf(withHeader("Content-Type: multipart/mixed; boundary=x", plainField("files", "--x--"))), "files", "form or message of its own"},
		"a file that is one":  {formOf("Content-Disposition: form-data; name=\"f\"; filename=\"f\"\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n--x--"), "f", "form or message of its own"},
		"a malformed type":    {formOf(withHeader("Content-Type: text", m)), "model", "Content-Type is malformed"},

		// Content-Disposition.
		"name*0":             {formOf(disposed(`form-data; name="model"; name*0="x"`, "other"), m), "model", "name*0"},
		"name*":              {formOf(disposed(`form-data; name*=utf-8''model`, "m")), "", "name*"},
		"filename*":          {formOf(disposed(`form-data; name="model"; filename*=utf-8''x`, "m")), "model", "filename*"},
		"a quoted semicolon": {formOf(disposed(`form-data; x="; name=model; y="`, "other"), m), "", "Content-Disposition must have"},
		"in a file's name":   {formOf(fileNamed("x", "; name=model; y=", "other"), m), "x", "Content-Disposition must have"},
		"another parameter":  {formOf(disposed(`form-data; name="model"; x="y"`, "m")), "model", "parameter x"},
		"two names":          {formOf(disposed(`form-data; name="x"; name="model"`, "m")), "x", "name twice"},
		"two file names":     {formOf(disposed(`form-data; name="x"; filename="a"; filename="b"`, "m")), "x", "filename twice"},
		"a name in capitals": {formOf(disposed(`form-data; NAME="model"`, "m")), "", "parameter NAME"},
		"a backslash":        {formOf(disposed(`form-data; name="mod\el"`, "m")), "", "Content-Disposition must have"},
		"a quoted quote":     {formOf(disposed(`form-data; name="a\"; name="model"`, "m")), "", "Content-Disposition must have"},
		"a quote in a word":  {formOf(disposed(`form-data; name=mo"d"el`, "m")), "", "Content-Disposition must have"},
		"a space in it":      {formOf(disposed(`form-data; name ="model"`, "m")), "", "Content-Disposition must have"},
		"a trailing sign":    {formOf(disposed(`form-data; name="model";`, "m")), "model", "Content-Disposition must have"},
		"not form-data":      {formOf(disposed(`attachment; name="model"`, "m")), "", "not form-data"},
		"no name":            {formOf(disposed(`form-data; filename="x"`, "m")), "", "no name"},
		"an empty name":      {formOf(plainField("", "m")), "", "1 to 128 bytes"},
		"a long name":        {formOf(plainField(strings.Repeat("m", maxFormName+1), "m")), "", "1 to 128 bytes"},
		"a percent sign":     {formOf(plainField("mod%65l", "m")), "", "letters, digits"},
		"a space before":     {formOf(plainField(" model", "m")), "", "letters, digits"},
		"half a bracket":     {formOf(plainField("model[", "m")), "", "letters, digits"},
		"the other half":     {formOf(plainField("x]model", "m")), "", "letters, digits"},
		"letters after it":   {formOf(plainField("x[]model", "m")), "", "letters, digits"},
		"a prototype":        {formOf(plainField("x[__proto__]", "m")), "", "letters, digits"},
		"another letter":     {formOf(plainField("ſtream", "true"), m), "", "letters, digits"},
		"an empty file name": {formOf(m, fileNamed("file", "", "x")), "file", "names no file"},
		"a folder's name":    {formOf(m, fileNamed("file", "a/..", "x")), "file", "names no file"},
		"a line in a file":   {formOf(m, fileNamed("file", "a\u2028b", "x")), "file", "control characters"},
		"a file in Latin":    {formOf(m, fileNamed("file", "\xfc.wav", "x")), "file", "UTF-8"},
		"a long file name":   {formOf(m, fileNamed("file", strings.Repeat("a", maxFileName+1), "x")), "file", "longer than"},

		// Names among each other.
		"two models":            {formOf(m, m), "model", "more than once"},
		"model in capitals":     {formOf(plainField("Model", "m")), "model", "spelled exactly like this"},
		"a list of models":      {formOf(plainField("model[]", "m")), "model", "spelled exactly like this"},
		"an element of a model": {formOf(m, plainField("model[x]", "m")), "model", "spelled exactly like this"},
		"model is a file":       {formOf(fileNamed("model", "m", "m")), "model", "spelled exactly like this"},
		"two streams":           {formOf(m, plainField("stream", "true"), plainField("stream", "true")), "stream", "more than once"},
		"stream is a file":      {formOf(m, fileNamed("stream", "m", "true")), "stream", "spelled exactly like this"},
		"two of another name":   {formOf(m, plainField("n", "1"), plainField("n", "2")), "n", "more than once"},
		"a file and a value":    {formOf(m, plainField("image", "1"), fileNamed("image", "a", "2")), "image", "more than once"},
		"a value and a file":    {formOf(m, fileNamed("image", "a", "2"), plainField("image", "1")), "image", "more than once"},
		"two spellings":         {formOf(m, plainField("top-p", "1"), plainField("top_p", "2")), "top_p", "another spelling of top-p"},
		"a value and a list":    {formOf(m, plainField("include", "1"), plainField("include[]", "2")), "include[]", "both with and without brackets"},
		"an element twice":      {formOf(m, plainField("x[a]", "1"), plainField("x[a]", "2")), "x[a]", "more than once"},
		"a charset":             {formOf(m, plainField("_charset_", "utf-7")), "_charset_", "UTF-8"},

		// Values.
		"model too long":       {formOf(plainField("model", strings.Repeat("m", 1<<20))), "model", "1 to 256 bytes"},
		"model empty":          {formOf(plainField("model", "")), "model", "1 to 256 bytes"},
		"model over two lines": {formOf(plainField("model", "a\r\nb")), "model", "control characters"},
		"stream is a word":     {formOf(m, plainField("stream", "maybe")), "stream", "true or false"},
		"stream with a space":  {formOf(m, plainField("stream", "true ")), "stream", "true or false"},
		"invalid UTF-8":        {formOf(m, plainField("prompt", "a\xffb")), "prompt", "not UTF-8"},
		"NUL in a value":       {formOf(m, plainField("prompt", "a\x00b")), "prompt", "not UTF-8"},
	} {
		_, err := ParseForm(testBoundary, c.body)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Status != 400 || e.Param != c.param || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFormPlan: a route's defaults and caps hold for forms as they do for JSON.
func TestFormPlan(t *testing.T) {
	defaults := []ParameterDefault{{"language", `"de\u0021"`}, {"temperature", "0.9"}, {"chunking", `{"type":"x"}`}, {"none", "null"}, {"max_tokens", "7"}}
	caps := []ParameterCap{{"n", 4}, {"temperature", 0.5}, {"max_tokens", 100}}
	m := plainField("model", "m")
	added := []string{"language|||de!", "temperature|||0.5", `chunking|||{"type":"x"}`}
	for name, c := range map[string]struct {
		parts []string
		want  []string
	}{
		"absent":    {nil, added},
		"empty":     {[]string{plainField("language", "")}, []string{"language|||de!", added[1], added[2]}},
		"given":     {[]string{plainField("language", "en"), plainField("n", "4")}, []string{"language|||en", "n|||4", added[1], added[2]}},
		"above":     {[]string{plainField("n", "1e1")}, append([]string{"n|||4"}, added...)},
		"infinite":  {[]string{plainField("n", "1e999")}, append([]string{"n|||4"}, added...)},
		"rewritten": {[]string{plainField("n", "-0.0")}, append([]string{"n|||0"}, added...)},
		"lengths": {[]string{plainField("max_tokens", "0"), plainField("max_completion_tokens", "-1"), plainField("n_predict", "0.5"), plainField("max_output_tokens", "99")},
			append([]string{"max_tokens|||100", "max_completion_tokens|||100", "n_predict|||100", "max_output_tokens|||99"}, added...)},
	} {
		f, err := ParseForm(testBoundary, formOf(append([]string{m}, c.parts...)...))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Plan(defaults, caps); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := readParts(t, f.boundary, anew(f, "m")); !slices.Equal(got[1:], c.want) {
			t.Errorf("%s: went on as %q", name, got[1:])
		}
	}
	for name, part := range map[string]string{
		"another spelling": plainField("N", "9"), "a list": plainField("n[]", "9"), "a file": fileNamed("n", "n", "9"),
		"a word": plainField("n", "nine"), "a space": plainField("n", "9 "), "another before it": plainField("n", " 9"),
		"Python's": plainField("n", "1_0"), "hexadecimal": plainField("n", "0x9"), "infinity": plainField("n", "-inf"), "-1e999": plainField("n", "-1e999"),
	} {
		f, err := ParseForm(testBoundary, formOf(m, part))
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := errors.AsType[*Error](f.Plan(nil, caps)); !ok || e.Status != 400 || e.Param != "n" {
			t.Errorf("%s: %v", name, e)
		}
	}
	f, err := ParseForm(testBoundary, formOf(m, plainField("LANGUAGE", "en")))
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := errors.AsType[*Error](f.Plan(defaults, nil)); !ok || e.Param != "language" {
		t.Errorf("a default beside another spelling: %v", e)
	}
}

// FuzzForm: what passes has the same parts for the standard library's reader, as the client wrote it and as it goes on;
// and what goes on is as plain as what is read.
func FuzzForm(f *testing.F) {
	f.Add("multipart/form-data; boundary=b0undary", formOf(plainField("model", "m"), filePart("RIFF"), plainField("stream", "true")))
	f.Add("multipart/form-data; boundary=b0undary", formOf(disposed("form-data; name=model", "m"), withHeader("Content-Type: text/plain; charset=utf-8", plainField("x[a]", "y"))))
	f.Add("multipart/form-data; boundary=b0undary", formOf(disposed(`form-data; name="model"; name*0="x"`, "other"), plainField("model", "m")))
	f.Add("multipart/form-data; boundary=b0undary", formOf(disposed(`form-data; x="; name=model; y="`, "other"), plainField("model", "m")))
	f.Add("multipart/form-data; boundary=b0undary", append([]byte("x--b0undary\r\n"), formOf(plainField("model", "m"))...))
	f.Add("multipart/form-data; boundary=\"=\"; charset=utf-8", []byte("--=\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--=--"))
	op, _ := OpAudioTranscriptions.Operation()
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		isForm, boundary, err := RequestBodyType(&op, []string{contentType})
		var form *Form
		if err == nil && isForm {
			form, err = ParseForm(boundary, body)
		}
		if err != nil {
			if _, ok := err.(*Error); !ok {
				t.Fatalf("%T", err)
			}
			return
		}
		if _, params, err := mime.ParseMediaType(contentType); err != nil || params["boundary"] != boundary {
			t.Fatalf("the boundary is %q here and %q for the standard library (%v)", boundary, params["boundary"], err)
		}
		model := form.Model
		if model == "" {
			return // refused by the Edge
		}
		written := anew(form, model)
		if size := form.Size(model); len(form.Write(model)) == 1 && len(written) > size {
			t.Fatalf("%d bytes, but Size says %d", len(written), size)
		}
		client, provider := readParts(t, boundary, body), readParts(t, form.boundary, written)
		if len(client) != len(form.parts) || len(provider) != len(form.parts) {
			t.Fatalf("%d parts here, %d from the client and %d for the provider", len(form.parts), len(client), len(provider))
		}
		models := 0
		for i := range form.parts {
			part := &form.parts[i]
			value := string(form.content(part, model))
			if want := strings.Join([]string{part.name, part.fileName, part.media, value}, "|"); provider[i] != want {
				t.Fatalf("part %d is %q and goes on as %q", i, want, provider[i])
			}
			if name, rest, _ := strings.Cut(client[i], "|"); name != part.name || part.file == strings.HasPrefix(rest, "|") {
				t.Fatalf("part %d is %q for the standard library: %q", i, client[i], part.name)
			}
			if strings.EqualFold(part.name, "model") {
				models++
			}
		}
		if models != 1 {
			t.Fatalf("%d models: %q", models, provider)
		}
		again, err := ParseForm(form.boundary, written)
		if err != nil || again.Model != model || again.Stream != form.Stream || len(again.parts) != len(form.parts) {
			t.Fatalf("read again: %+v %v", again, err)
		}
	})
}
