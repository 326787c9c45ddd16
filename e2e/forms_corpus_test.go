package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// hidden is the part that a hostile form hides from one reader, and shows to another.
var hidden = formField("model", "dear")

// hostileForms name the model that their key may use, and try to hide another one from some readers.
var hostileForms = func() map[string]string {
	cheap, file := formField("model", "cheap"), formFile
	plain := form(cheap, file)
	behind := func(before string) string { return before + hidden + "\r\n" + plain }
	disposed := func(disposition string) string {
		return form("Content-Disposition: "+disposition+"\r\n\r\ndear", cheap, file)
	}
	return map[string]string{
		"a continued name":             disposed(`form-data; name="model"; name*0="x"`),
		"an extended name":             disposed(`form-data; name="x"; name*=utf-8''model`),
		"a name in a quoted text":      disposed(`form-data; name="y"; x="; name=model; z="`),
		"a quoted quote":               disposed(`form-data; name="x\"; name=\"model"`),
		"two names":                    disposed(`form-data; name="x"; name="model"`),
		"two names, the other way":     disposed(`form-data; name="model"; name="x"`),
		"two names in other letters":   disposed(`form-data; name="x"; NAME="model"`),
		"a name without quotes":        disposed(`form-data; name=mo"d"el`),
		"a backslash":                  disposed(`form-data; name="mod\el"`),
		"a percent sign":               disposed(`form-data; name="mod%65l"`),
		"a list":                       form(cheap, file, formField("model[]", "dear")),
		"an element":                   form(cheap, file, formField("model[0]", "dear")),
		"other letters":                form(cheap, file, formField("Model", "dear")),
		"a space":                      form(cheap, file, formField(" model", "dear")),
		"twice":                        form(cheap, file, hidden),
		"a file":                       form(cheap, `Content-Disposition: form-data; name="model"; filename=""`+"\r\n\r\ndear"),
		"a boundary in a preamble":     behind("x--B\r\n"),
		"a boundary before CR CR LF":   behind("--B\r\r\n"),
		"a boundary and a space":       behind("--B \r\n"),
		"a boundary and a tab":         behind("--B\t\r\n"),
		"a boundary and LF":            behind("--B\n"),
		"a boundary behind LF":         behind("x\n--B\r\n"),
		"a boundary behind CR":         behind("x\r--B\r\n"),
		"an end, and parts":            "--B--\r\n" + plain,
		"an epilogue":                  plain + form(hidden),
		"a longer boundary":            strings.TrimSuffix(plain, "--B--\r\n") + "--BB\r\n" + hidden + "\r\n--B--\r\n",
		"a boundary in a file":         form(cheap, formFile+"\r\n--B \r\n"+hidden),
		"LF in a file":                 form(cheap, formFile+"\n--B\n"+strings.ReplaceAll(hidden, "\r\n", "\n")+"\n--B--"),
		"a folded name":                disposed("form-data; x=y;\r\n name=\"model\""),
		"a header in a value":          form(cheap, "Content-Disposition: form-data; name=\"x\"\nContent-Disposition: form-data; name=\"model\"\r\n\r\ndear"),
		"a header behind CR":           form(cheap, "Content-Disposition: form-data; name=\"x\"\rContent-Disposition: form-data; name=\"model\"\r\n\r\ndear"),
		"two headers":                  form(cheap, "Content-Disposition: form-data; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ndear"),
		"a header and a space":         form(cheap, "Content-Disposition : form-data; name=\"model\"\r\n\r\ndear"),
		"NUL in a name":                form(cheap, formField("model\x00", "dear")),
		"a form in the form":           form(cheap, "Content-Disposition: form-data; name=\"x\"\r\nContent-Type: multipart/mixed; boundary=C\r\n\r\n--C\r\n"+hidden+"\r\n--C--"),
		"a charset":                    form("Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; charset=utf-7\r\n\r\n+AGQ-ear", file),
		"base64":                       form("Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64\r\n\r\nZGVhcg==", file),
		"a field that names a charset": form(cheap, formField("_charset_", "utf-7"), formField("+AG0-odel", "dear")),
	}
}()

// plainForm is one as clients send it, with the model at a random place among others.
func plainForm(r *rand.Rand) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	names := []string{"prompt", "language", "n", "temperature", "response_format", "include[]", "timestamp_granularities[]", "chunking_strategy[type]", "hotwords", "user"}
	r.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
	var parts []string
	for _, name := range names[:r.IntN(4)] {
		value := pick("", "a", "0.5", "ä€\U0001f600", "two\r\nlines", "--", "--C\r\n", "\r\n", "a&model=dear", strings.Repeat("long ", 400))
		header := pick("", "", "Content-Type: text/plain; charset=utf-8\r\n", "Content-Length: 7\r\n", "Content-Type: application/json\r\n")
		parts = append(parts, header+formField(name, value))
		if strings.HasSuffix(name, "[]") {
			parts = append(parts, formField(name, pick("b", "c")))
		}
	}
	for range r.IntN(3) {
		content := pick("", "RIFF", "\x00\xff\x80", "\r\n\r\n", "Content-Disposition: form-data; name=\"model\"\r\n\r\ndear", strings.Repeat("\x00\r\n-", 700))
		parts = append(parts, fmt.Sprintf("Content-Disposition: form-data; name=%s; filename=%s\r\n%s\r\n%s",
			pick(`"file"`, `"known_speaker_references[]"`, "keywords"), pick(`"a.wav"`, "a.wav", `"ä b%22.png"`, `"/x/y.wav"`, `"model"`),
			pick("", "Content-Type: audio/wav\r\n", "Content-Type: text/plain; charset=utf-16\r\n", "Content-Transfer-Encoding: binary\r\n"), content))
	}
	at := r.IntN(len(parts) + 1)
	parts = append(parts[:at:at], append([]string{formField("model", "cheap")}, parts[at:]...)...)
	return form(parts...)
}

// snippets are what a mutation puts somewhere: where readers of forms look.
var snippets = []string{
	"\r", "\n", "\r\n", "\r\n\r\n", "--B", "--B\r\n", "--B--", "\r\n--B\r\n", "\n--B\n", "-", "--", " ", "\t", "\x00", "\"", "\\", "\\\"", ";", "; ", "=", "*", "*0", "*=", ":",
	`; name="model"`, `; name*="model"`, `; name*0="mo"; name*1="del"`, `; filename="x"`, `; filename*=utf-8''x`, `; filename=""`, `; x="`, "form-data", "name=", "model", "Model", "[", "]", "[]", "%6d",
	"Content-Disposition: form-data; name=\"model\"\r\n", "Content-Type: text/plain\r\n", "Content-Transfer-Encoding: base64\r\n", "--B\r\n" + hidden + "\r\n",
}

// mutated changes a form in one to three places.
func mutated(r *rand.Rand, form string) string {
	for range 1 + r.IntN(3) {
		at := r.IntN(len(form) + 1)
		end := min(at+1+r.IntN(6), len(form))
		switch r.IntN(5) {
		case 0, 1:
			form = form[:at] + snippets[r.IntN(len(snippets))] + form[at:]
		case 2:
			form = form[:at] + form[end:]
		case 3:
			form = form[:at] + snippets[r.IntN(len(snippets))] + form[end:]
		case 4: // a piece twice
			form = form[:end] + form[at:]
		}
	}
	return form
}
