package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"iop/openai"
	"iop/openai/anthropic"
)

// Bounds of a page of Anthropic's list of models.
const (
	modelPage    = 20
	maxModelPage = 1000
)

// familyOfRequest says whose error shape an answer has. OpenAI's and Anthropic's clients list models at one path; it is
// Anthropic's that name a version, or have their key in a header of its own.
func familyOfRequest(r *http.Request) openai.Family {
	path := r.URL.Path
	if path == modelsPath || strings.HasPrefix(path, modelPrefix) {
		if len(r.Header["Anthropic-Version"]) > 0 || len(r.Header["X-Api-Key"]) > 0 && len(r.Header["Authorization"]) == 0 {
			return openai.FamilyAnthropic
		}
	}
	return familyOf(path)
}

// anthropicModels is the page of models, of those ordered by id, that the query asks for.
func anthropicModels(all []openai.Model, query url.Values) ([]byte, *openai.Error) {
	limit := modelPage
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxModelPage {
			return nil, openai.InvalidRequest("limit", "limit must be a number from 1 to "+strconv.Itoa(maxModelPage))
		}
		limit = n
	}
	after, before := query.Get("after_id"), query.Get("before_id")
	if after != "" && before != "" {
		return nil, openai.InvalidRequest("before_id", "after_id and before_id can't be combined")
	}
	// A model that has gone since is a border all the same: where it stood.
	place := func(id string) (int, bool) {
		return slices.BinarySearchFunc(all, id, func(m openai.Model, id string) int { return strings.Compare(m.ID, id) })
	}
	if before != "" {
		end, _ := place(before)
		start := max(0, end-limit)
		return anthropic.AppendModels(nil, all[start:end], start > 0), nil
	}
	start := 0
	if after != "" {
		found := false
		if start, found = place(after); found {
			start++
		}
	}
	end := min(len(all), start+limit)
	return anthropic.AppendModels(nil, all[start:end], end < len(all)), nil
}
