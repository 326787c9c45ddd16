package openai

import (
	"strings"

	"iop/execution"
	"iop/nodeagent/adapter"
)

type message struct {
	Role             string     `json:"role"`
	Name             string     `json:"name,omitempty"`
	Content          any        `json:"content,omitempty"` // a string, or []contentPart
	Refusal          string     `json:"refusal,omitempty"`
	ReasoningContent string     `json:"reasoning_content,omitempty"`
	ToolCalls        []toolCall `json:"tool_calls,omitempty"`
	ToolCallID       string     `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function calledByName `json:"function"`
}

type calledByName struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type contentPart struct {
	Type       string      `json:"type"`
	Text       *string     `json:"text,omitempty"`
	ImageURL   *imageURL   `json:"image_url,omitempty"`
	InputAudio *inputAudio `json:"input_audio,omitempty"`
	File       *file       `json:"file,omitempty"`
}

type imageURL struct {
	URL    string `json:"url"`
	Detail string `json:"detail,omitempty"`
}

type inputAudio struct {
	Data   string `json:"data"`
	Format string `json:"format"`
}

type file struct {
	Name string `json:"filename,omitempty"`
	Data string `json:"file_data,omitempty"`
	ID   string `json:"file_id,omitempty"`
}

func (r *request) messages(list []execution.Message, spec adapter.Spec) *execution.UnsupportedError {
	r.Messages = make([]message, 0, len(list))
	for i := range list {
		m, refusal := newMessage(i, &list[i], spec)
		if refusal != nil {
			return refusal
		}
		r.Messages = append(r.Messages, m)
	}
	return nil
}

func newMessage(at int, in *execution.Message, spec adapter.Spec) (m message, refusal *execution.UnsupportedError) {
	m = message{Role: role(in.Role, spec), Name: in.Name, ToolCallID: in.ToolCallID}
	for _, c := range in.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, toolCall{c.ID, "function", calledByName{c.Name, c.Arguments}})
	}
	var parts []contentPart
	for i := range in.Parts {
		p := &in.Parts[i]
		switch p.Kind {
		case execution.PartRefusal:
			m.Refusal += p.Text
			continue
		case execution.PartReasoning:
			if !spec.Hosted { // OpenAI takes no thought back in this protocol
				m.ReasoningContent += p.Text
			}
			continue
		}
		part, refusal := newPart(at, i, p)
		if refusal != nil {
			return m, refusal
		}
		parts = append(parts, part)
	}
	m.Content = content(parts)
	if m.Content == nil && len(m.ToolCalls) == 0 && m.Refusal == "" {
		m.Content = "" // it must have one
	}
	return m, nil
}

// role says developer as system, which every engine's template knows; OpenAI's own service tells them apart.
func role(r execution.Role, spec adapter.Spec) string {
	if r == execution.RoleDeveloper && !spec.Hosted {
		return string(execution.RoleSystem)
	}
	return string(r)
}

// content is a plain string where there is one text and nothing else: some engines' templates take nothing else.
func content(parts []contentPart) any {
	switch {
	case len(parts) == 0:
		return nil
	case len(parts) == 1 && parts[0].Text != nil:
		return *parts[0].Text
	}
	return parts
}

func newPart(message, part int, p *execution.Part) (contentPart, *execution.UnsupportedError) {
	refuse := func(detail string) (contentPart, *execution.UnsupportedError) {
		return contentPart{}, adapter.Refuse(execution.ParamPart(message, part), detail)
	}
	switch p.Kind {
	case execution.PartText:
		return contentPart{Type: "text", Text: &p.Text}, nil
	case execution.PartImage:
		switch {
		case p.URL != "":
			return contentPart{Type: "image_url", ImageURL: &imageURL{p.URL, p.Detail}}, nil
		case p.Data != "":
			return contentPart{Type: "image_url", ImageURL: &imageURL{dataURL(p), p.Detail}}, nil
		}
		return refuse("The Chat Completions API takes images by URL or in the request, not by file id.")
	case execution.PartAudio:
		if p.Data == "" {
			return refuse("The Chat Completions API takes audio only in the request.")
		}
		return contentPart{Type: "input_audio", InputAudio: &inputAudio{p.Data, audioFormat(p)}}, nil
	case execution.PartFile:
		switch {
		case p.FileID != "":
			return contentPart{Type: "file", File: &file{ID: p.FileID}}, nil
		case p.Data != "":
			return contentPart{Type: "file", File: &file{Name: p.Name, Data: dataURL(p)}}, nil
		}
		return refuse("The Chat Completions API does not take files by URL.")
	}
	return refuse("The Chat Completions API does not have this content.")
}

func dataURL(p *execution.Part) string {
	t := p.MediaType
	if t == "" {
		t = "application/octet-stream"
	}
	return "data:" + t + ";base64," + p.Data
}

func audioFormat(p *execution.Part) string {
	if p.Format != "" {
		return p.Format
	}
	return strings.TrimPrefix(strings.TrimPrefix(p.MediaType, "audio/"), "x-")
}
