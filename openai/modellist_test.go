package openai

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestParseModelList(t *testing.T) {
	for _, c := range []struct {
		body string
		want []Model
	}{
		{`{"object":"list","data":[{"id":"a/b:c","object":"model","created":17,"owned_by":"vllm","root":"x","max_model_len":4096}]}`,
			[]Model{{"a/b:c", 17, "vllm"}}},
		{`{"models":[{"name":"llama3.2:3b","model":"llama3.2:3b","modified_at":"2025-11-29T10:00:00.5+01:00","size":1,"details":{"family":"llama"}}]}`,
			[]Model{{"llama3.2:3b", 1764406800, ""}}},
		{`{"models":[{"name":"gguf"}],"object":"list","data":[{"id":"gguf-id"}]}`, []Model{{ID: "gguf-id"}}},
		{`[{"id":"x"},{"id":"y","created":1.5e3}]`, []Model{{ID: "x"}, {ID: "y", Created: 1500}}},
		{`{"data":[{"id":"x"},{"id":"x"},{"id":""},{"id":7},{"id":"a\nb"},{},"z",null]}`, []Model{{ID: "x"}}},
		{`{"data":[{"id":"` + strings.Repeat("m", 300) + `"},{"id":"ok","owned_by":"` + strings.Repeat("o", 1<<16) + `"}]}`, []Model{{ID: "ok"}}},
		{`{"data":[]}`, nil}, {`{"data":null,"models":null}`, nil}, {` [] `, nil},
	} {
		got, err := ParseModelList([]byte(c.body))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%.100s: %+v %v", c.body, got, err)
		}
	}
	for _, bad := range []string{"", "{}", `{"data":{}}`, "<html>", `{"data":[}`, `"x"`, "7", `{"error":{"message":"no"}}`} {
		if got, err := ParseModelList([]byte(bad)); err == nil {
			t.Errorf("%s passed as %v", bad, got)
		}
	}
}

// TestModelListBombs: a hostile list costs no more than its own size.
func TestModelListBombs(t *testing.T) {
	many := []byte(`{"data":[` + strings.Repeat(`{"id":"a"},`, 200_000) + `{"id":"b"}]}`)
	if got, err := ParseModelList(many); err != nil || len(got) != 2 {
		t.Error(len(got), err)
	}
	empties := []byte(`{"data":[` + strings.Repeat(`[],`, 500_000) + `[]]}`)
	if n := allocated(func() { _, _ = ParseModelList(empties) }); n > 64<<10 {
		t.Errorf("%d bytes allocated for a breadth bomb", n)
	}
}

func TestAppendModelList(t *testing.T) {
	models := []Model{{"a/b:c", 17, "me"}, {ID: "say \"x\""}}
	body := AppendModelList(nil, models)
	got, err := ParseModelList(body)
	if err != nil || !slices.Equal(got, models) || !json.Valid(body) {
		t.Errorf("%s: %+v %v", body, got, err)
	}
	if got := string(AppendModelList(nil, nil)); got != `{"object":"list","data":[]}` {
		t.Error(got)
	}
	if got := string(AppendModel(nil, models[0])); got != `{"id":"a/b:c","object":"model","created":17,"owned_by":"me"}` {
		t.Error(got)
	}
}
