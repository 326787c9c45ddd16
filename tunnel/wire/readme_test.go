package wire

import (
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"iop/execution"
)

//go:embed README.md
var readme string

// messages are what frames carry, for those that carry protobuf.
var messages = map[Type]proto.Message{
	TypeRegister: &RegisterRequest{}, TypeRegistered: &RegisterResponse{}, TypeReady: &NodeReadyRequest{}, TypeReadyAck: &NodeReadyResponse{},
	TypeHeartbeat: &Heartbeat{}, TypeHeartbeatAck: &HeartbeatAck{}, TypeRefresh: &Refresh{}, TypeCommand: &CommandRequest{},
	TypeCommandResult: &CommandResult{}, TypeRevoke: &Revoke{}, TypeRevokeAck: &RevokeAck{}, TypeDrain: &Drain{}, TypeGoodbye: &Goodbye{}, TypeNotice: &Notice{},
	TypeOpen: &Open{}, TypeHead: &Head{}, TypeCancel: &Cancel{}, TypeEnd: &End{},
}

// The contract's table of frames is the code's.
func TestReadmeFrameTable(t *testing.T) {
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Z_]+) \| (session|run|both) \| \S+ \| (\w+)`).FindAllStringSubmatch(readme, -1)
	if len(rows) != int(typeLimit)-1 {
		t.Fatalf("%d rows, %d types", len(rows), typeLimit-1)
	}
	for i, row := range rows {
		typ := Type(i + 1)
		if row[1] != strconv.Itoa(int(typ)) || row[2] != typ.String() {
			t.Errorf("row %d: %s %s, the code has %d %s", i, row[1], row[2], typ, typ)
		}
		on := map[string][2]bool{"session": {true, false}, "run": {false, true}, "both": {true, true}}[row[3]]
		if on != [2]bool{typ.OnSession(), typ.OnRun()} {
			t.Errorf("%s is on %s in the table", typ, row[3])
		}
		if m := messages[typ]; m != nil && string(m.ProtoReflect().Descriptor().Name()) != row[4] {
			t.Errorf("%s carries %s in the table", typ, row[4])
		}
	}
}

// Its numbers of phases, outcomes and codes are those of package execution.
func TestReadmeNumbers(t *testing.T) {
	for name, list := range map[string]func(uint8) string{
		"phase":   func(n uint8) string { return execution.Phase(n).String() },
		"outcome": func(n uint8) string { return execution.Outcome(n).String() },
		"code":    func(n uint8) string { return execution.Code(n).String() },
	} {
		row := regexp.MustCompile(`(?m)^\| ` + name + ` \| (.*) \|$`).FindStringSubmatch(readme)
		if row == nil {
			t.Fatalf("no row for %s", name)
		}
		last := -1
		for _, entry := range strings.Split(row[1], ", ") {
			number, word, _ := strings.Cut(entry, " ")
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			if got := list(uint8(n)); got != word && !(name == "code" && n == 0 && word == "none") {
				t.Errorf("%s %d is %q, the table says %q", name, n, got, word)
			}
			last = n
		}
		if next := list(uint8(last + 1)); !strings.HasPrefix(next, "unknown_") {
			t.Errorf("%s %d %q is missing", name, last+1, next)
		}
	}
}

// Its examples decode, and encode to the same bytes.
func TestReadmeExamples(t *testing.T) {
	_, block, _ := strings.Cut(readme, "```hex\n")
	block, _, _ = strings.Cut(block, "```")
	examples := strings.Split(strings.TrimSpace(block), "\n\n")
	if len(examples) < 15 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, example := range examples {
		title, digits, _ := strings.Cut(example, "\n")
		frame, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "").Replace(digits))
		if err != nil {
			t.Fatalf("%s: %v", title, err)
		}
		h, payload, rest, err := Next(frame)
		if err != nil || len(rest) > 0 || !strings.HasPrefix(title, h.Type.String()+":") {
			t.Errorf("%s: %s, %d bytes left, %v", title, h.Type, len(rest), err)
		}
		if _, stream, ok := strings.Cut(title, "stream "); ok && !strings.HasPrefix(stream, fmt.Sprint(h.Stream)) {
			t.Errorf("%s: is on stream %d", title, h.Stream)
		}
		m := messages[h.Type]
		if m == nil {
			continue
		}
		m = m.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(payload, m); err != nil {
			t.Errorf("%s: %v", title, err)
		}
		if again, err := (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil || proto.Size(m) != len(again) || len(again) != len(payload) {
			t.Errorf("%s: encodes to %d bytes, %v", title, len(again), err)
		}
		if len(m.ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("%s: has unknown fields", title)
		}
	}
}

// section returns the contract's section of that title.
func section(t *testing.T, title string) string {
	t.Helper()
	_, text, ok := strings.Cut(readme, title+"\n")
	if !ok {
		t.Fatalf("no section %q", title)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// The table of the run input has the members that the code has, each of its JSON type, and its example is an input.
func TestReadmeRunInput(t *testing.T) {
	text := section(t, "## 14. The run input")
	want := map[string]string{}
	inputMembers(reflect.TypeFor[execution.Input](), "", want)
	got := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\w+) \\|").FindAllStringSubmatch(text, -1) {
		if _, twice := got[row[1]]; twice {
			t.Errorf("%s is there twice", row[1])
		}
		got[row[1]] = row[2]
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] == "" || want[name] != "any" && got[name] != want[name] {
			t.Errorf("%s is %q in the table, the code has %s", name, got[name], want[name])
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("the code has no %s", name)
	}
	if !strings.Contains(text, fmt.Sprintf("`version` is %d.", execution.InputVersion)) {
		t.Errorf("the version is %d", execution.InputVersion)
	}
	_, example, _ := strings.Cut(text, "```json\n")
	example, _, _ = strings.Cut(example, "```")
	if _, err := execution.ParseInput([]byte(example)); err != nil {
		t.Error(err)
	}
}

// inputMembers lists the members of a struct by their JSON names, and those of what they hold.
func inputMembers(typ reflect.Type, prefix string, into map[string]string) {
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		field := typ.Field(i).Type
		if field.Kind() == reflect.Pointer {
			field = field.Elem()
		}
		switch {
		case field == reflect.TypeFor[json.RawMessage]():
			into[prefix+name] = "any"
		case field.Kind() == reflect.Slice:
			into[prefix+name] = "array"
			if field.Elem().Kind() == reflect.Struct {
				inputMembers(field.Elem(), prefix+name+"[].", into)
			}
		case field.Kind() == reflect.Struct:
			into[prefix+name] = "object"
			inputMembers(field, prefix+name+".", into)
		case field.Kind() == reflect.Map:
			into[prefix+name] = "object"
		case field.Kind() == reflect.String:
			into[prefix+name] = "string"
		case field.Kind() == reflect.Bool:
			into[prefix+name] = "bool"
		default:
			into[prefix+name] = "number"
		}
	}
}

// The table of run events has the members and fields that the schema has; TextDelta stands for three of them, each with
// fields of its own.
func TestReadmeRunEvents(t *testing.T) {
	own := map[string][]string{"text": {"text", "logprobs"}, "refusal": {"text", "logprobs"}, "reasoning": {"text", "signature", "redacted"}}
	want := map[string]bool{}
	kinds := (&RunEvent{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		kind := kinds.Get(i)
		want[string(kind.Name())+" "] = true
		if kind.Message() == nil {
			continue
		}
		for j := range kind.Message().Fields().Len() {
			name := string(kind.Message().Fields().Get(j).Name())
			if list := own[string(kind.Name())]; list == nil || slices.Contains(list, name) {
				want[string(kind.Name())+" "+name] = true
			}
		}
	}
	kind := ""
	for _, row := range regexp.MustCompile("(?m)^\\| (?:`(\\w+)`)? ?\\| (?:`(\\w+)`)? ?\\|").FindAllStringSubmatch(section(t, "## 15. Run events"), -1) {
		if row[1] != "" {
			kind = row[1]
		}
		if !want[kind+" "+row[2]] {
			t.Errorf("the schema has no %s %s", kind, row[2])
		}
		delete(want, kind+" "+row[2])
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}
