package anthropic

import (
	"time"

	"iop/openai"
)

// lastSecond is the last that RFC 3339 can write.
const lastSecond = 253402300799

// AppendModels appends a page of models as Anthropic's list. more says whether there are others on the side that the page
// was asked for.
func AppendModels(dst []byte, page []openai.Model, more bool) []byte {
	dst = append(dst, `{"data":[`...)
	for i := range page {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendModel(dst, &page[i])
	}
	dst = append(dst, `],"has_more":`...)
	if more {
		dst = append(dst, "true"...)
	} else {
		dst = append(dst, "false"...)
	}
	first, last := "null", "null"
	if len(page) > 0 {
		first = string(openai.AppendString(nil, page[0].ID))
		last = string(openai.AppendString(nil, page[len(page)-1].ID))
	}
	return append(dst, `,"first_id":`+first+`,"last_id":`+last+`}`...)
}

// AppendModel appends one model as Anthropic's model object. A model's name is all that is shown of it; a time that nobody
// told is the epoch, as in the protocol.
func AppendModel(dst []byte, m *openai.Model) []byte {
	dst = append(dst, `{"type":"model","id":`...)
	dst = openai.AppendString(dst, m.ID)
	dst = append(dst, `,"display_name":`...)
	dst = openai.AppendString(dst, m.ID)
	dst = append(dst, `,"created_at":"`...)
	created := m.Created
	if created > lastSecond {
		created = 0
	}
	dst = time.Unix(created, 0).UTC().AppendFormat(dst, time.RFC3339)
	return append(dst, `"}`...)
}
