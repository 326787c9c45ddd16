package web

import (
	"cmp"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"iop/gateway/admin"
)

// fieldFault is what is wrong with one field of a form; Field is empty where none is to blame.
type fieldFault struct{ Field, Message string }

// Unnamed reports whether the message does not say by itself which field it is about.
func (f fieldFault) Unnamed() bool {
	return f.Field != "" && !strings.HasPrefix(f.Message, fieldName(f.Field))
}

// formFault is all that is wrong with a form.
type formFault struct{ Faults []fieldFault }

func faultOf(field, message string) *formFault { return &formFault{[]fieldFault{{field, message}}} }

func (f *formFault) Error() string {
	messages := make([]string, len(f.Faults))
	for i := range f.Faults {
		messages[i] = f.Faults[i].Message
	}
	return strings.Join(messages, "; ")
}

// fieldNames is what pages call the fields whose names differ in the API.
var fieldNames = map[string]string{
	"routes": "Models", "rpm": "Requests per minute", "tpm": "Tokens per minute", "concurrency": "Concurrent requests",
	"monthly_tokens": "Tokens per month", "expires": "Expires", "node": "Node name", "actor": "Who", "source": "Address", "key": "Key",
}

// fieldName is what the page calls a field.
func fieldName(field string) string {
	name := cmp.Or(fieldNames[field], field)
	return strings.ToUpper(name[:min(len(name), 1)]) + name[min(len(name), 1):]
}

// wrong marks a field that is to blame, for the style sheet and for those who can't see it.
func wrong(f *formFault, field string) template.HTMLAttr {
	if f != nil {
		for i := range f.Faults {
			if f.Faults[i].Field == field {
				return `aria-invalid="true" aria-errormessage="fault"`
			}
		}
	}
	return ""
}

// refusedForm says what the API refused of a form; nil for an error that is no refusal of what was filled in.
func refusedForm(err error) *formFault {
	if f, ok := errors.AsType[*formFault](err); ok {
		return f
	}
	refused, ok := errors.AsType[*apiError](err)
	if !ok || refused.Status >= 500 {
		return nil
	}
	if refused.Body.Param != nil {
		return faultOf(*refused.Body.Param, refused.Body.Message)
	}
	return faultOf("", refused.Body.Message)
}

// form reads the fields of a form, and gathers what is wrong with them.
type form struct {
	values url.Values
	faults []fieldFault
}

func formOf(r *http.Request) (*form, error) {
	err := r.ParseForm()
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &apiError{http.StatusRequestEntityTooLarge, admin.ErrorBody{Message: "The form is too long.", Code: "body_too_large"}}
	}
	if err != nil {
		return nil, &apiError{http.StatusBadRequest, admin.ErrorBody{Message: "The form could not be read.", Code: "invalid_request"}}
	}
	return &form{values: r.PostForm}, nil
}

// err is what is wrong with the fields that were read so far, nil where nothing is.
func (f *form) err() error {
	if len(f.faults) == 0 {
		return nil
	}
	return &formFault{f.faults}
}

func (f *form) text(name string) string { return strings.TrimSpace(f.values.Get(name)) }

// words are a field's values, separated by commas or space; none is an empty list.
func (f *form) words(name string) []string {
	return append([]string{}, strings.FieldsFunc(f.values.Get(name), func(c rune) bool { return c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t' })...)
}

// number is a whole number, 0 where the field is empty. What it may be the API knows.
func (f *form) number(name string) int64 {
	text := f.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		f.fail(name, "the number is too large")
	} else if err != nil {
		f.fail(name, "must be a whole number such as 60")
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
		f.fail(name, "must be a date such as 2027-03-31")
		return nil
	}
	t = t.Add(24 * time.Hour)
	return &t
}

// lastDay is what day is given for a time: the day whose end it is, or on which it lies. Empty for never.
func lastDay(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Add(-time.Nanosecond).UTC().Format(time.DateOnly)
}

func (f *form) fail(field, message string) {
	f.faults = append(f.faults, fieldFault{field, fieldName(field) + ": " + message})
}

// former begins the names of the hidden fields that say what the others showed.
const former = "was_"

// changed reports whether somebody changed a field: what was left as it was shown may have changed elsewhere since.
func (f *form) changed(name string) bool {
	return !f.values.Has(former+name) || f.text(name) != strings.TrimSpace(f.values.Get(former+name))
}

// filled is what the form had, so that a fault loses nothing.
func (f *form) filled() map[string]string {
	values := map[string]string{}
	for name := range f.values {
		values[name] = f.values.Get(name)
	}
	return values
}
