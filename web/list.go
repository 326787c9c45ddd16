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
	"key-changed":   "The key was changed. New limits apply from its next request.",
	"key-revoked":   "The key was revoked. Requests that use it are now refused.",
	"slot-set":      "The slot was saved. Its value is sealed and never shown again.",
	"slot-rotated":  "The slot was rotated to the new value.",
	"slot-enabled":  "The slot was enabled.",
	"slot-disabled": "The slot was disabled. No new leases of it are issued.",
	"slot-revoked":  "The slot's value was revoked.",
	"slot-deleted":  "The slot was deleted.",
	"config-loaded": "The configuration was reloaded.",
	"node-drained":  "The Node is draining. It gets no new runs; runs in progress finish.",
	"node-resumed":  "The Node was resumed. It gets new runs again.",
	"run-cancelled": "The run was cancelled.",
	"token-revoked": "The join token was revoked, and its sessions were ended.",
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
