package gateway

import "strings"

// passedTypes are the media types that operations of the API answer with, and families of them. A provider's answer of another
// type goes on under a plainer one: the public origin serves no page, script or style sheet that a provider wrote.
var (
	passedTypes    = []string{"application/json", "text/event-stream", "application/x-ndjson", "application/jsonl", "application/octet-stream", "text/plain", "text/vtt", "application/x-subrip"}
	passedFamilies = []string{"audio/", "image/", "video/"}
)

// scriptedImage is the one image type that may hold a script.
const scriptedImage = "image/svg"

// passedType is the Content-Type under which a provider's answer goes on: its own if the API knows it, text/plain for other
// text, and bytes for the rest.
func passedType(value string) string {
	media, _, _ := strings.Cut(value, ";")
	media = strings.TrimSpace(media)
	for _, known := range passedTypes {
		if strings.EqualFold(media, known) {
			return value
		}
	}
	for _, family := range passedFamilies {
		if hasPrefixFold(media, family) && !hasPrefixFold(media, scriptedImage) {
			return value
		}
	}
	switch {
	case value == "":
		return ""
	case hasPrefixFold(media, "application/") && strings.HasSuffix(strings.ToLower(media), "+json"):
		return value
	case hasPrefixFold(media, "text/"):
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// isMedia compares a media type, whatever parameters follow it.
func isMedia(value, media string) bool {
	return len(value) >= len(media) && strings.EqualFold(value[:len(media)], media) &&
		(len(value) == len(media) || value[len(media)] == ';' || value[len(media)] == ' ')
}
