package openai

import (
	"strings"

	"iop/execution"
)

// setSource puts what an image or a file is made of into the part: the data of a data: URL, or a URL for the provider.
func setSource(p *execution.Part, url string) *Error {
	if len(url) >= 5 && strings.EqualFold(url[:5], "data:") {
		mediaType, data, ok := cutDataURL(url)
		if !ok {
			return InvalidRequest("", "must be a data: URL with a media type and ;base64")
		}
		p.MediaType = mediaType
		return setData(p, data)
	}
	scheme, rest, _ := strings.Cut(url, "://")
	if rest == "" || !strings.EqualFold(scheme, "https") && !strings.EqualFold(scheme, "http") {
		return InvalidRequest("", "must be an http, https or data: URL")
	}
	p.URL = url
	return nil
}

// cutDataURL takes a data: URL (RFC 2397) in base64 apart.
func cutDataURL(url string) (mediaType, data string, ok bool) {
	head, data, ok := strings.Cut(url[len("data:"):], ",")
	const suffix = ";base64"
	if !ok || len(head) <= len(suffix) || !strings.EqualFold(head[len(head)-len(suffix):], suffix) {
		return "", "", false
	}
	return strings.ToLower(head[:len(head)-len(suffix)]), data, true
}

// setData checks base64 and puts it into the part as RFC 4648, section 4, has it: some clients break lines or leave the
// padding out.
func setData(p *execution.Part, data string) *Error {
	if !isBase64(data) {
		data = strings.TrimRight(strings.NewReplacer("\n", "", "\r", "", " ", "", "\t", "").Replace(data), "=")
		data += strings.Repeat("=", (4-len(data)%4)%4)
		if !isBase64(data) {
			return InvalidRequest("", "must hold valid base64")
		}
	}
	p.Data = data
	return nil
}

func isBase64(s string) bool {
	if s == "" || len(s)%4 != 0 {
		return false
	}
	inside := strings.TrimSuffix(strings.TrimSuffix(s, "="), "=")
	for i := range len(inside) {
		c := inside[i]
		if c|0x20-'a' > 25 && c-'0' > 9 && c != '+' && c != '/' {
			return false
		}
	}
	return true
}
