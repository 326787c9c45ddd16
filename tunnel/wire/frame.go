package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Subprotocol is the WebSocket subprotocol of the tunnel; Path is where an Edge serves it; HeaderTrial is the header of a trial and
// of its answer; HeaderNode is the name that a Node claims before it has proved anything; ProtocolVersion is the one version of REGISTER that exists.
const (
	Subprotocol            = "iop.tunnel.v1"
	Path                   = "/tunnel/v1"
	HeaderTrial            = "Iop-Trial"
	HeaderNode             = "Iop-Node"
	ProtocolVersion uint32 = 1
)

// Limits of the codec, in bytes. They stand here because the reader enforces them.
const (
	HeaderSize = 16
	// MaxPayload bounds one frame, so that no frame holds up the others for long.
	MaxPayload = 32 << 10
	// MaxMessage bounds a WebSocket message: a run of whole frames.
	MaxMessage = 64 << 10
	// MaxHead bounds HEAD: what an HTTP client accepts as a head, with room to spare.
	MaxHead = 24 << 10
	// MaxStreams is the most runs at once in a session: their ids must fit a HEARTBEAT.
	MaxStreams = 4096
	// MaxEvent bounds one RunEvent: a reader that is given a piece of one holds it until the rest is there.
	MaxEvent = 1 << 20
	// MaxSessionID bounds the session_id of a command.
	MaxSessionID = 256
	// MaxDetail bounds End.detail.
	MaxDetail = 512
	// MaxLease bounds LEASE: a sealed lease is mostly under 2 KiB.
	MaxLease = 8 << 10
	// MaxKey bounds a public key (a P-256 JWK takes about 200 bytes), MaxKeys the verification keys that an Edge has at
	// once: one in use, the next, and those that still verify what they signed.
	MaxKey  = 1 << 10
	MaxKeys = 16
)

// Type says what a frame is.
type Type uint8

// The frame types. Numbers are part of the contract and never reused.
const (
	TypeRegister Type = iota + 1
	TypeRegistered
	TypeReady
	TypeReadyAck
	TypeHeartbeat
	TypeHeartbeatAck
	TypeRefresh
	TypeCommand
	TypeCommandResult
	TypeRevoke
	TypeRevokeAck
	TypeDrain
	TypeGoodbye
	TypeOpen
	TypeLease
	TypePhase
	TypeHead
	TypeBody
	TypeEvent
	TypeWindow
	TypeCancel
	TypeEnd
	TypeNotice
	typeLimit
)

var typeNames = [...]string{
	"", "REGISTER", "REGISTERED", "READY", "READY_ACK", "HEARTBEAT", "HEARTBEAT_ACK", "REFRESH", "COMMAND",
	"COMMAND_RESULT", "REVOKE", "REVOKE_ACK", "DRAIN", "GOODBYE", "OPEN", "LEASE", "PHASE", "HEAD", "BODY", "EVENT",
	"WINDOW", "CANCEL", "END", "NOTICE",
}

// String returns the type's name in the contract.
func (t Type) String() string {
	if t > 0 && t < typeLimit {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Known reports whether t is a type of this version.
func (t Type) Known() bool { return t > 0 && t < typeLimit }

// OnSession reports whether t belongs on stream 0. WINDOW belongs on both.
func (t Type) OnSession() bool { return t <= TypeGoodbye || t == TypeWindow || t == TypeNotice }

// OnRun reports whether t belongs on a run's stream.
func (t Type) OnRun() bool { return t >= TypeOpen && t <= TypeEnd }

// Flags qualify a frame.
type Flags uint8

// The flags.
const (
	FlagIgnorable Flags = 1 << iota // drop the frame if its type is unknown
	FlagLast                        // the last frame of this stream and direction
	FlagBorder                      // of BODY: the payload ends at an SSE event border
	FlagContinued                   // of EVENT: the payload may end inside an event
)

// FrameHeader is the fixed part of a frame, numbers in network byte order.
type FrameHeader struct {
	Type   Type
	Flags  Flags
	Stream uint32 // 0: the session
	Seq    uint32 // per stream and direction, from 0, without a gap
	Length uint32 // bytes of payload
}

// AppendHeader appends h to dst.
func AppendHeader(dst []byte, h FrameHeader) []byte {
	dst = append(dst, byte(h.Type), byte(h.Flags), 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, h.Stream)
	dst = binary.BigEndian.AppendUint32(dst, h.Seq)
	return binary.BigEndian.AppendUint32(dst, h.Length)
}

// AppendFrame appends a whole frame; h.Length is set from the payload.
func AppendFrame(dst []byte, h FrameHeader, payload []byte) []byte {
	h.Length = uint32(len(payload))
	return append(AppendHeader(dst, h), payload...)
}

// What Next can find wrong. Each is an error of the session: after it the message can't be read on. The one exception
// is ErrTooLarge on a run's stream when the whole frame is in the message: see Next.
var (
	ErrTruncated = errors.New("frame: the message ends inside a frame")
	ErrReserved  = errors.New("frame: reserved bytes are not 0")
	ErrTooLarge  = fmt.Errorf("frame: payload over %d bytes", MaxPayload)
	ErrNoFrame   = errors.New("frame: empty message")
	ErrPlacement = errors.New("frame: type on the wrong kind of stream")
)

// Next splits the first frame off message. The payload aliases message. An unknown type is not an error here: whether
// it may be ignored is in its flags. With ErrTooLarge come the header and, if the message holds all of the frame, its
// payload and the rest: the fault is then of the frame's stream, and the others need not suffer.
func Next(message []byte) (h FrameHeader, payload, rest []byte, err error) {
	if len(message) < HeaderSize {
		if len(message) == 0 {
			return h, nil, nil, ErrNoFrame
		}
		return h, nil, nil, ErrTruncated
	}
	h = FrameHeader{
		Type:   Type(message[0]),
		Flags:  Flags(message[1]),
		Stream: binary.BigEndian.Uint32(message[4:]),
		Seq:    binary.BigEndian.Uint32(message[8:]),
		Length: binary.BigEndian.Uint32(message[12:]),
	}
	switch {
	case message[2] != 0 || message[3] != 0:
		return h, nil, nil, ErrReserved
	case h.Length > MaxMessage:
		return h, nil, nil, ErrTooLarge
	case int(h.Length) > len(message)-HeaderSize:
		return h, nil, nil, ErrTruncated
	case h.Type.Known() && h.Stream == 0 && !h.Type.OnSession(), h.Type.Known() && h.Stream != 0 && !h.Type.OnRun():
		return h, nil, nil, ErrPlacement
	}
	if h.Length > MaxPayload {
		err = ErrTooLarge
	}
	end := HeaderSize + int(h.Length)
	return h, message[HeaderSize:end:end], message[end:], err
}

// AppendWindow appends the payload of a WINDOW frame: credit in bytes.
func AppendWindow(dst []byte, credit uint32) []byte {
	return binary.BigEndian.AppendUint32(dst, credit)
}

// ParseWindow reads the payload of a WINDOW frame. Credit of 0 or beyond 1<<30 is malformed.
func ParseWindow(payload []byte) (uint32, error) {
	if len(payload) != 4 {
		return 0, fmt.Errorf("WINDOW: %d bytes of payload, want 4", len(payload))
	}
	credit := binary.BigEndian.Uint32(payload)
	if credit == 0 || credit > 1<<30 {
		return 0, fmt.Errorf("WINDOW: credit %d out of range", credit)
	}
	return credit, nil
}
