package nodeagent

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"iop/tunnel/wire"
)

// maxHeadBytes bounds the allowed headers of one answer: a HEAD frame carries 24 KiB at most, names and framing included.
const maxHeadBytes = 20 << 10

// defaultUserAgent is what a provider sees where the client sent none.
const defaultUserAgent = "iop-node"

// requestHeaders are the headers that may travel from the Edge to a provider, by their name on the wire. What frames,
// routes, authorises, upgrades or says which account is billed is not among them, nor is idempotency-key: net/http would take it as leave to send a
// request twice.
var requestHeaders = map[string]string{
	"accept":                  "Accept",
	"accept-language":         "Accept-Language",
	"anthropic-beta":          "Anthropic-Beta",
	"anthropic-version":       "Anthropic-Version",
	"content-type":            "Content-Type",
	"openai-beta":             "Openai-Beta",
	"traceparent":             "Traceparent",
	"tracestate":              "Tracestate",
	"user-agent":              "User-Agent",
	"via":                     "Via",
	"x-client-request-id":     "X-Client-Request-Id",
	"x-request-id":            "X-Request-Id",
	"x-session-id":            "X-Session-Id",
	"x-stainless-retry-count": "X-Stainless-Retry-Count",
}

// responseHeaders are the headers that may travel from a provider to the Edge, by the form that net/http gives them.
// content-length is not among them: it is made from the body that is really sent.
var responseHeaders = map[string]string{
	"Anthropic-Organization-Id": "anthropic-organization-id",
	"Content-Disposition":       "content-disposition",
	"Content-Encoding":          "content-encoding",
	"Content-Language":          "content-language",
	"Content-Type":              "content-type",
	"Openai-Model":              "openai-model",
	"Openai-Organization":       "openai-organization",
	"Openai-Processing-Ms":      "openai-processing-ms",
	"Openai-Version":            "openai-version",
	"Request-Id":                "request-id",
	"Retry-After":               "retry-after",
	"Retry-After-Ms":            "retry-after-ms",
	"X-Request-Id":              "x-request-id",
	"X-Should-Retry":            "x-should-retry",
}

// responsePrefixes are families of headers that pass as a whole.
var responsePrefixes = []string{"Openai-", "X-Ratelimit-", "Anthropic-Ratelimit-"}

// Values that most runs share, made once. Never changed.
var (
	jsonType  = []string{"application/json"}
	userAgent = []string{defaultUserAgent}
	// plainCoding is the encoding that every request to a provider asks for: without the header any would do (RFC 9110,
	// section 12.5.3), and an answer must be searched for the provider's key and read for its usage.
	plainCoding = []string{"identity"}
)

// requestHeader makes the header of a provider's request from what the Edge sent. Unknown names are dropped, malformed
// values refused.
func requestHeader(sent []*wire.Header, key *credential) (http.Header, error) {
	h := make(http.Header, len(sent)+3)
	values := make([]string, 0, len(sent))
	for _, f := range sent {
		name, ok := requestHeaders[f.GetName()]
		if !ok {
			continue
		}
		if !validValue(f.GetValue()) {
			return nil, fmt.Errorf("header %s has a malformed value", f.GetName())
		}
		if _, twice := h[name]; twice {
			return nil, fmt.Errorf("header %s is given twice", f.GetName())
		}
		if name == "Content-Type" && f.GetValue() == jsonType[0] {
			h[name] = jsonType
			continue
		}
		values = append(values, f.GetValue())
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = userAgent
	}
	h["Accept-Encoding"] = plainCoding
	key.authorize(h)
	return h, nil
}

// validValue reports whether v may be a header's value: no control characters but the tab (RFC 9110, section 5.5).
func validValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// responseHead makes the head of an answer. length is the length of the body as it will be sent, -1 if unknown.
func responseHead(status int, h http.Header, length int64) (*wire.Head, error) {
	fields := make([]wire.Header, len(h)+1)
	head := &wire.Head{Status: uint32(status), Headers: make([]*wire.Header, 0, len(fields))}
	size := 0
	add := func(name, value string) {
		f := &fields[len(head.Headers)]
		f.Name, f.Value = name, value
		head.Headers = append(head.Headers, f)
		size += len(name) + len(value) + 16
	}
	for name, values := range h {
		if lower, ok := allowedResponse(name); ok && len(values) > 0 && values[0] != "" {
			add(lower, values[0])
		}
	}
	if length >= 0 {
		add("content-length", strconv.FormatInt(length, 10))
	}
	if size > maxHeadBytes {
		return nil, fmt.Errorf("the allowed headers of the answer exceed %d bytes", maxHeadBytes)
	}
	return head, nil
}

func allowedResponse(name string) (string, bool) {
	if lower, ok := responseHeaders[name]; ok {
		return lower, true
	}
	for _, prefix := range responsePrefixes {
		if strings.HasPrefix(name, prefix) {
			return strings.ToLower(name), true
		}
	}
	return "", false
}
