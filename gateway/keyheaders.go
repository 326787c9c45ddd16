package gateway

import (
	"net/http"
	"strings"

	"iop/openai"
)

// presentedKey returns the one key that the request's headers hold, or says what is wrong with them. The error depends on
// the headers alone, never on whether a key exists, so it tells a guesser nothing.
//
// Authorization: Bearer and x-api-key are both accepted on every path. Anthropic's SDKs send both if a token and a key are
// set: on Anthropic's paths two different keys are refused, as it is not clear which one is meant. On other paths
// x-api-key beside Authorization is somebody else's, such as a proxy's, and is ignored.
func presentedKey(h http.Header, fam openai.Family) (string, *openai.Error) {
	auth, other := h["Authorization"], h["X-Api-Key"]
	if len(auth) > 0 && fam != openai.FamilyAnthropic {
		other = nil
	}
	switch {
	case len(auth) > 1:
		return "", openai.BadKeyHeader("The request has more than one key in 'Authorization' or in the path. Send one key, once.")
	case len(other) > 1:
		return "", openai.BadKeyHeader("The request has more than one 'x-api-key' header. Send one key, once.")
	case len(auth) == 0 && len(other) == 0:
		return "", noKeyHeader(h, fam)
	case len(auth) == 0 && other[0] == "":
		return "", openai.BadKeyHeader("The 'x-api-key' header is empty. " + openai.HowToSendKey(fam))
	case len(auth) == 0:
		return other[0], nil
	}
	token, e := bearerToken(auth[0], fam)
	if e == nil && len(other) == 1 && other[0] != token {
		return "", openai.BadKeyHeader("'Authorization' and 'x-api-key' hold different keys. Send only one of them.")
	}
	return token, e
}

// noKeyHeader refuses a request without a header for the key. Azure's clients use another one.
func noKeyHeader(h http.Header, fam openai.Family) *openai.Error {
	if len(h["Api-Key"]) > 0 {
		return openai.BadKeyHeader("The 'api-key' header is not read here. " + openai.HowToSendKey(fam))
	}
	return openai.BadKeyHeader("The request has no API key. " + openai.HowToSendKey(fam))
}

// bearerToken is the token of an Authorization header.
func bearerToken(value string, fam openai.Family) (string, *openai.Error) {
	scheme, token, found := strings.Cut(value, " ")
	switch {
	case value == "", strings.EqualFold(value, "Bearer"):
		return "", openai.BadKeyHeader("The 'Authorization' header has no API key. " + openai.HowToSendKey(fam))
	case !found:
		return "", openai.BadKeyHeader("The 'Authorization' header lacks the word Bearer. " + openai.HowToSendKey(fam))
	case !strings.EqualFold(scheme, "Bearer"):
		return "", openai.BadKeyHeader("The scheme of the 'Authorization' header is not Bearer. " + openai.HowToSendKey(fam))
	case token == "" || strings.ContainsAny(token, " ,\t"):
		return "", openai.BadKeyHeader("The 'Authorization' header must hold one key after 'Bearer ', without spaces or commas. " +
			openai.HowToSendKey(fam))
	}
	return token, nil
}
