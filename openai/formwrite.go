package openai

// copiedContent is up to how many bytes a part's content is copied between the headers, so that a form goes out in a few
// pieces. What is larger is a piece of its own, which is the client's.
const copiedContent = 1 << 10

// ContentType is the content type of what Write returns.
func (f *Form) ContentType() string { return typeForm + "; boundary=" + f.boundary }

// Size returns how many bytes Write allocates.
func (f *Form) Size(model string) (n int) {
	for i := range f.parts {
		part := &f.parts[i]
		n += len(f.boundary) + len("\r\n--\r\n") + len(`Content-Disposition: form-data; name=""`) + len(part.name) + len("\r\n\r\n")
		if part.file {
			n += len(`; filename=""`) + len(part.fileName) + len("\r\nContent-Type: ") + len(part.media)
		}
		if content := f.content(part, model); len(content) <= copiedContent {
			n += len(content)
		}
	}
	return n + len("\r\n----\r\n") + len(f.boundary)
}

// Write returns the form with that name as its model, in pieces that follow each other. What is large in it is not
// copied but is the body's that was parsed. The boundary can't occur in it: the client did not know it.
func (f *Form) Write(model string) (pieces [][]byte) {
	buf := make([]byte, 0, f.Size(model))
	from := 0 // what of buf is in no piece yet
	for i := range f.parts {
		part := &f.parts[i]
		if i > 0 {
			buf = append(buf, "\r\n"...)
		}
		buf = append(append(append(buf, "--"...), f.boundary...), "\r\n"...)
		buf = part.appendHeader(buf)
		content := f.content(part, model)
		if len(content) <= copiedContent {
			buf = append(buf, content...)
			continue
		}
		pieces = append(pieces, buf[from:len(buf):len(buf)], content)
		from = len(buf)
	}
	buf = append(append(append(buf, "\r\n--"...), f.boundary...), "--\r\n"...)
	return append(pieces, buf[from:])
}

// content is the content of a part of the form that names that model.
func (f *Form) content(part *formPart, model string) []byte {
	if part.name == "model" {
		return []byte(model)
	}
	return part.content
}

// appendHeader appends the header of a part and the empty line behind it. Everything in it passed parsePartHeader.
func (part *formPart) appendHeader(buf []byte) []byte {
	buf = append(append(buf, `Content-Disposition: form-data; name="`...), part.name...)
	if part.file {
		buf = append(append(buf, `"; filename="`...), part.fileName...)
		buf = append(append(buf, "\"\r\nContent-Type: "...), part.media...)
		return append(buf, "\r\n\r\n"...)
	}
	return append(buf, "\"\r\n\r\n"...)
}
