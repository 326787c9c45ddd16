package anthropic_test

import (
	"encoding/json"
	"testing"
	"time"

	"iop/openai"
	"iop/openai/anthropic"
)

func TestModels(t *testing.T) {
	page := []openai.Model{{ID: `a"/b:c`, Created: 1767225600, OwnedBy: "x"}, {ID: "b"}, {ID: "c", Created: 1 << 60}}
	const want = `{"data":[{"type":"model","id":"a\"/b:c","display_name":"a\"/b:c","created_at":"2026-01-01T00:00:00Z"},` +
		`{"type":"model","id":"b","display_name":"b","created_at":"1970-01-01T00:00:00Z"},` +
		`{"type":"model","id":"c","display_name":"c","created_at":"1970-01-01T00:00:00Z"}],` +
		`"has_more":true,"first_id":"a\"/b:c","last_id":"c"}`
	got := anthropic.AppendModels(nil, page, true)
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var list struct {
		Data []struct {
			CreatedAt time.Time `json:"created_at"`
		}
	}
	if err := json.Unmarshal(got, &list); err != nil || len(list.Data) != 3 {
		t.Errorf("%v: %s", err, got)
	}
	if got := string(anthropic.AppendModels(nil, nil, false)); got != `{"data":[],"has_more":false,"first_id":null,"last_id":null}` {
		t.Errorf("none: %s", got)
	}
}
