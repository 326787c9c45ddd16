package tunnel

import (
	"google.golang.org/protobuf/proto"

	"iop/tunnel/wire"
)

// commandLocked answers one of the closed set of questions. What is none of them can't be expressed: whatever else a
// COMMAND holds has no kind here, and the answer is an error.
func (s *nodeSession) commandLocked(payload []byte) error {
	var c wire.CommandRequest
	if err := proto.Unmarshal(payload, &c); err != nil {
		return protocolError("COMMAND: %w", err)
	}
	result := &wire.CommandResult{Id: c.Id, SessionId: c.SessionId}
	switch kind := c.Kind.(type) {
	case *wire.CommandRequest_Capabilities:
		result.Capabilities = s.capabilities(int(kind.Capabilities.GetSkip()))
	case *wire.CommandRequest_TransportStatus:
		result.TransportStatus = s.statusLocked()
	default:
		result.Error = "this Node does not support the command"
	}
	if len(c.SessionId) > wire.MaxSessionID {
		result = &wire.CommandResult{Id: c.Id, Error: "the session_id is too long"}
	}
	return s.link.answerLocked(wire.TypeCommandResult, result)
}

// capabilities is what the Node has, without the first entries, as far as it fits into an answer.
func (s *nodeSession) capabilities(skip int) *wire.Capabilities {
	info := s.sup.describe()
	providers, models := wireProviders(info.Providers), wireModels(info.Models)
	for i, p := range providers {
		for j := range info.Providers {
			if string(info.Providers[j].ID) == p.Id {
				providers[i].InFlight = uint32(min(max(info.Providers[j].InFlight, 0), maxCapacity))
			}
		}
	}
	skipped := min(skip, len(providers))
	providers, skip = providers[skipped:], skip-skipped
	models = models[min(skip, len(models)):]
	page := firstPage(providers, models)
	return &wire.Capabilities{
		Providers:       page.Providers,
		Models:          page.Models,
		SoftwareVersion: truncate(info.Version, maxNameBytes),
		More:            len(page.Providers) < len(providers) || len(page.Models) < len(models),
	}
}
