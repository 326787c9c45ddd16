package execution

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// AppendInput appends the input as it travels: one JSON document (RFC 8259), with InputVersion.
func AppendInput(dst []byte, in *Input) ([]byte, error) {
	v := *in
	v.Version = InputVersion
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&v); err != nil {
		return dst, fmt.Errorf("run input: %w", err)
	}
	return buf.Bytes(), nil
}

// ParseInput reads what AppendInput wrote. It refuses another version, an unknown field and a malformed document, and
// what no protocol could mean: no messages, a role or a kind that is not in the contract.
func ParseInput(data []byte) (*Input, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	in := &Input{}
	if err := dec.Decode(in); err != nil {
		return nil, fmt.Errorf("run input: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("run input: data after the document")
	}
	if in.Version != InputVersion {
		return nil, fmt.Errorf("run input: version %d, this Node knows %d", in.Version, InputVersion)
	}
	if err := in.validate(); err != nil {
		return nil, fmt.Errorf("run input: %w", err)
	}
	return in, nil
}

// validate checks what is closed in the contract.
func (in *Input) validate() error {
	if len(in.Messages) == 0 {
		return errors.New("messages: there is none")
	}
	for i, m := range in.Messages {
		if err := m.validate(); err != nil {
			return fmt.Errorf("messages[%d]: %w", i, err)
		}
	}
	if c := in.ToolChoice; c != nil {
		switch c.Mode {
		case ToolsAuto, ToolsNone, ToolsRequired, ToolsNamed:
		default:
			return fmt.Errorf("tool_choice: no mode %q", c.Mode)
		}
	}
	if f := in.Format; f != nil {
		switch f.Kind {
		case FormatText, FormatJSON, FormatJSONSchema:
		default:
			return fmt.Errorf("format: no kind %q", f.Kind)
		}
	}
	return nil
}

func (m *Message) validate() error {
	switch m.Role {
	case RoleSystem, RoleDeveloper, RoleUser, RoleAssistant, RoleTool:
	default:
		return fmt.Errorf("no role %q", m.Role)
	}
	for i, p := range m.Parts {
		switch p.Kind {
		case PartText, PartImage, PartAudio, PartFile, PartRefusal, PartReasoning:
		default:
			return fmt.Errorf("parts[%d]: no kind %q", i, p.Kind)
		}
	}
	return nil
}
