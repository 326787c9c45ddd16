package openai

import (
	"strconv"
	"strings"

	"iop/execution"
)

// paramNames says what a client calls the parameters of its input, for errors that come from where nobody knows its
// protocol.
type paramNames struct {
	names    map[execution.Param]string
	messages []messagePlace // by the input's messages
}

// messagePlace is where in the client's request a message of the input stands, and where its parts do.
type messagePlace struct {
	at    string
	parts []string
}

// param is the Param of a Request.
func (n *paramNames) param(p execution.Param) string {
	if name, ok := n.names[p]; ok {
		return name
	}
	rest, ok := strings.CutPrefix(string(p), "messages[")
	if !ok {
		return string(p)
	}
	message, rest, ok := cutIndex(rest)
	if !ok || message >= len(n.messages) {
		return n.all()
	}
	place := n.messages[message]
	rest, isPart := strings.CutPrefix(rest, ".content[")
	if part, _, ok := cutIndex(rest); isPart && ok && part < len(place.parts) {
		return place.parts[part]
	}
	return place.at
}

// all is the name of all messages.
func (n *paramNames) all() string {
	if name, ok := n.names[execution.ParamMessages]; ok {
		return name
	}
	return string(execution.ParamMessages)
}

// cutIndex reads "3]..." .
func cutIndex(s string) (i int, rest string, ok bool) {
	digits, rest, ok := strings.Cut(s, "]")
	i, err := strconv.Atoi(digits)
	return i, rest, ok && err == nil && i >= 0
}
