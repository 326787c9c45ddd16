package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
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

// formFault is what is wrong with a form, and its field where one is to blame.
type formFault struct{ Field, Message string }

func (f *formFault) Error() string { return f.Message }

// refusedForm says what the API refused of a form; nil for an error that is no refusal of what was filled in.
func refusedForm(err error) *formFault {
	if f, ok := errors.AsType[*formFault](err); ok {
		return f
	}
	refused, ok := errors.AsType[*apiError](err)
	if !ok || refused.Status >= 500 {
		return nil
	}
	f := &formFault{Message: refused.Body.Message}
	if refused.Body.Param != nil {
		f.Field = *refused.Body.Param
	}
	return f
}

// form reads the fields of a form; its first fault stays.
type form struct {
	values url.Values
	err    error
}

func formOf(r *http.Request) (*form, error) {
	if err := r.ParseForm(); err != nil {
		return nil, &formFault{Message: "The form could not be read: it may be too long."}
	}
	return &form{values: r.PostForm}, nil
}

func (f *form) text(name string) string { return strings.TrimSpace(f.values.Get(name)) }

// words are a field's values, separated by commas or space.
func (f *form) words(name string) []string {
	return strings.FieldsFunc(f.values.Get(name), func(c rune) bool { return c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t' })
}

// number is a whole number, 0 where the field is empty.
func (f *form) number(name string) int64 {
	text := f.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		f.fail(name, fmt.Sprintf("%s must be a whole number of 0 or more", name))
	}
	return n
}

// day is the end of a day, nil where the field is empty.
func (f *form) day(name string) *time.Time {
	text := f.text(name)
	if text == "" {
		return nil
	}
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		f.fail(name, name+" must be a day such as 2027-03-31")
		return nil
	}
	t = t.Add(24 * time.Hour)
	return &t
}

func (f *form) fail(field, message string) {
	if f.err == nil {
		f.err = &formFault{field, message}
	}
}
