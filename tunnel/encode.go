package tunnel

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// encode is proto.Marshal for messages with text from outside: HTTP lets a header carry any bytes (RFC 9110 section
// 5.5), a message only UTF-8. What is not becomes U+FFFD; an odd byte in a header must not fail a run.
func encode(m proto.Message) ([]byte, error) {
	payload, err := proto.Marshal(m)
	if err == nil {
		return payload, nil
	}
	m = proto.Clone(m)
	cleanText(m.ProtoReflect())
	return proto.Marshal(m)
}

// cleanText makes every string of m valid, in its messages and lists too. Maps are left as they are: no message with
// text from outside has one.
func cleanText(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range v.List().Len() {
				cleanText(v.List().Get(i).Message())
			}
		case f.IsList():
		case f.Kind() == protoreflect.MessageKind:
			cleanText(v.Message())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(strings.ToValidUTF8(v.String(), "\uFFFD")))
		}
		return true
	})
}
