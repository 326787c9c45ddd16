package tunnel

import "iop/tunnel/wire"

// Limits of what a Node may say of a model's file, in bytes.
const (
	maxDigestBytes     = 128
	maxDetailBytes     = 64
	maxCapabilityBytes = 32
	maxCapabilities    = 16
)

// lastModified is the end of the year 9999, in Unix seconds: later times can't be written as clients read them.
const lastModified = 253402300799

// ModelDetails are what a provider says of a model's file. What it does not say is zero. They are for display: nothing
// is decided by them. They are immutable once given away.
type ModelDetails struct {
	Size          int64 // bytes
	Digest        string
	Modified      int64 // Unix seconds
	Family        string
	ParameterSize string   // such as 8.0B
	Quantization  string   // such as Q4_K_M
	Capabilities  []string // Ollama's words: completion, tools, vision, thinking, embedding, insert; none: unknown
	ContextLength int64    // tokens
}

// describe puts what is known of the model's file into m.
func (d *ModelDetails) describe(m *wire.Model) {
	if d == nil {
		return
	}
	m.Size, m.Digest = max(d.Size, 0), truncate(d.Digest, maxDigestBytes)
	m.ModifiedUnix = believedTime(d.Modified)
	m.Family, m.ParameterSize = truncate(d.Family, maxDetailBytes), truncate(d.ParameterSize, maxDetailBytes)
	m.Quantization = truncate(d.Quantization, maxDetailBytes)
	m.Capabilities = capabilities(d.Capabilities)
	m.ContextLength = max(d.ContextLength, 0)
}

// parseDetails returns what a Node says of the model's file, or nil if it says nothing. Texts come from the provider and
// are shown: they are cut, and don't cost the session.
func parseDetails(m *wire.Model) *ModelDetails {
	d := &ModelDetails{
		Size: max(m.Size, 0), Digest: truncate(m.Digest, maxDigestBytes), Modified: believedTime(m.ModifiedUnix),
		Family: truncate(m.Family, maxDetailBytes), ParameterSize: truncate(m.ParameterSize, maxDetailBytes),
		Quantization: truncate(m.Quantization, maxDetailBytes), Capabilities: capabilities(m.Capabilities),
		ContextLength: max(m.ContextLength, 0),
	}
	if d.Size == 0 && d.Modified == 0 && d.ContextLength == 0 && len(d.Capabilities) == 0 &&
		d.Digest+d.Family+d.ParameterSize+d.Quantization == "" {
		return nil
	}
	return d
}

// believedTime is a time in Unix seconds as it may be shown, 0 if it is none.
func believedTime(seconds int64) int64 {
	if seconds < 0 || seconds > lastModified {
		return 0
	}
	return seconds
}

// capabilities leaves out what is no name of one, and what is too much.
func capabilities(list []string) []string {
	var out []string
	for _, c := range list[:min(len(list), maxCapabilities)] {
		if len(c) <= maxCapabilityBytes && usableName(c) {
			out = append(out, c)
		}
	}
	return out
}
