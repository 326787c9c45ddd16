package web

import (
	"net/http"
	"net/url"
)

// listOf is how the API answers several of a kind.
type listOf[T any] struct {
	Data []T `json:"data"`
}

// outcomes are what a page says after a form was sent, by the word in its address. The list is closed: an address
// can't make a page say something else.
var outcomes = map[string]string{
	"key-changed":   "The key was changed. Its new limits count from its next request on.",
	"key-revoked":   "The key was revoked: requests with it are refused from now on.",
	"slot-set":      "The slot has its value. It is sealed, and never shown again.",
	"slot-rotated":  "The slot has its new value.",
	"slot-enabled":  "The slot is enabled again.",
	"slot-disabled": "The slot is disabled: no new lease of it is issued.",
	"slot-revoked":  "The slot's value was revoked.",
	"slot-deleted":  "The slot was deleted.",
	"config-loaded": "The file was read and its routes are in force.",
	"node-drained":  "The Node gets no new runs. Those under way finish.",
	"node-resumed":  "The Node gets runs again.",
	"run-cancelled": "The run was cancelled.",
	"token-revoked": "The join token was revoked, and the sessions that it opened have ended.",
	"model-deleted": "The model was deleted from the Node's Ollama.",
	"model-pulled":  "The model was pulled.",
}

// outcome is what the page says of the form that led to it.
func outcome(r *http.Request) string { return outcomes[r.URL.Query().Get("done")] }

// done sends the browser on to a page that says the outcome.
func done(w http.ResponseWriter, r *http.Request, path, word string) error {
	http.Redirect(w, r, path+"?done="+url.QueryEscape(word), http.StatusSeeOther)
	return nil
}
