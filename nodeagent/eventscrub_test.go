package nodeagent

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"iop/execution"
)

// writtenText is one text of an answer, as a provider writes it piece by piece. What is refused may follow what is said.
type writtenText struct {
	id      textID
	text    []byte // as it came
	refused int    // where the refusal begins; len(text) where there is none
	sent    int
	said    int    // how much of out is no refusal
	named   bool   // it is a call that has begun
	out     []byte // as it goes on, put together as a client does
}

// next is the event of the next piece, of at most so many bytes.
func (s *writtenText) next(size int) *execution.Event {
	end := min(s.sent+size, len(s.text))
	e := &execution.Event{Kind: s.id.kind, Choice: s.id.choice}
	if s.id.kind == execution.EventText {
		if s.sent >= s.refused {
			e.Kind = execution.EventRefusal
		} else {
			end = min(end, s.refused)
		}
	}
	if s.id.kind == execution.EventToolCall {
		e.Call.Index = s.id.call
		if s.sent == 0 {
			e.Call.ID, e.Call.Name = "id", "name"
		}
	}
	*textOf(e) = string(s.text[s.sent:end])
	s.sent = end
	return e
}

// answerOf are texts of all kinds, of two choices.
func answerOf(texts [][]byte, refused int) []*writtenText {
	ids := []textID{
		{kind: execution.EventText}, {kind: execution.EventReasoning},
		{kind: execution.EventToolCall}, {kind: execution.EventToolCall, call: 1},
		{kind: execution.EventText, choice: 1}, {kind: execution.EventToolCall, choice: 1},
	}
	var all []*writtenText
	for i, text := range texts[:min(len(texts), len(ids))] {
		w := &writtenText{id: ids[i], text: text, refused: len(text)}
		if w.id.kind == execution.EventText {
			w.refused = min(refused, len(text))
		}
		all = append(all, w)
	}
	return all
}

// writeAnswer pushes the texts in the order that pick says, and checks the order of what goes on.
func writeAnswer(t *testing.T, s *eventScrubber, sources []*writtenText, pick func(n int) (which, size int)) {
	t.Helper()
	refused := map[int]bool{}
	emit := func(e *execution.Event) error {
		if e.Kind == execution.EventFinish {
			return nil
		}
		if e.Kind == execution.EventRefusal {
			refused[e.Choice] = true
		} else if e.Kind == execution.EventText && refused[e.Choice] {
			t.Fatal("an answer goes on after its refusal")
		}
		for _, src := range sources {
			if src.id == textOfEvent(e) {
				if e.Call.Name != "" {
					src.named = true
				} else if e.Kind == execution.EventToolCall && !src.named {
					t.Fatal("a call goes on that has not begun")
				}
				src.out = append(src.out, *textOf(e)...)
				if e.Kind != execution.EventRefusal {
					src.said = len(src.out)
				}
				return nil
			}
		}
		t.Fatalf("an event of no text: %+v", e)
		return nil
	}
	push := func(e *execution.Event) {
		if err := s.push(e, emit); err != nil {
			t.Fatal(err)
		}
	}
	open := append([]*writtenText(nil), sources...)
	for len(open) > 0 {
		i, size := pick(len(open))
		src := open[i]
		push(src.next(size))
		if src.sent == len(src.text) {
			open = append(open[:i], open[i+1:]...)
		}
	}
	for choice := range 2 {
		push(&execution.Event{Kind: execution.EventFinish, Choice: choice})
	}
	if len(s.tails) > 0 {
		t.Fatalf("%d texts wait after the end of all", len(s.tails))
	}
}

// checkHidden: of each needle all is hidden but what its beginning may tell, and nothing else is.
func checkHidden(t *testing.T, n *needleSet, sources []*writtenText) {
	t.Helper()
	for _, src := range sources {
		told := make([]bool, len(src.text))
		for _, hit := range hitsOf(n, src.text) {
			for i := hit.begin; i < min(hit.begin+n.telling, hit.end); i++ {
				told[i] = true
			}
		}
		want := masked(n, src.text)
		if len(src.out) != len(want) || src.said != src.refused {
			t.Fatalf("%+v: %q comes out as %q", src.id, src.text, src.out)
		}
		for i := range want {
			if src.out[i] != want[i] && !(told[i] && src.out[i] == src.text[i]) {
				t.Fatalf("%+v: %q comes out as %q, want %q", src.id, src.text, src.out, want)
			}
		}
		if bytes.Contains(src.out, n.all[0]) {
			t.Fatalf("%+v: the credential is in %q", src.id, src.out)
		}
	}
}

// FuzzScrubEvents: whatever comes between the pieces of a text, and however they are cut, no form of the credential comes
// out of it, and all else does. Texts are separated by the byte 255; the bytes 0 to 31 stand for the credential.
func FuzzScrubEvents(f *testing.F) {
	f.Add("sk-abcdef0123456789", []byte("a\x00b\xffc\x00\xff{\x00}\xff\x01\x02\xff\x00\xff\x00"), []byte{0, 1, 9, 2, 3, 17}, uint8(3))
	f.Add("abababababababab", []byte("\x00ab\xff\x00a\x00bab\xffab"), []byte{0, 8, 1, 9}, uint8(9))
	f.Add("aab", []byte("aaab aa\x00aab\xffaab"), []byte{0, 1}, uint8(1))
	f.Add("{}{}{}{}", []byte("\x04\x05\xff\x00\xff\x00"), []byte{7, 30}, uint8(0))
	f.Fuzz(func(t *testing.T, secret string, text, order []byte, refused uint8) {
		credential := visible(secret)
		if len(credential) == 0 || len(text) > 1<<10 || len(order) == 0 {
			return
		}
		var texts [][]byte
		for _, part := range bytes.Split(text, []byte{255}) {
			texts = append(texts, expand(part, string(credential)))
		}
		n, step := newNeedleSet(bytes.Clone(credential)), 0
		sources := answerOf(texts, int(refused))
		s := &eventScrubber{scrub: scrubber{needles: n}, choices: map[int]*choiceTexts{}}
		writeAnswer(t, s, sources, func(open int) (int, int) {
			b := int(order[step%len(order)])
			step++
			return b % open, b/8%13 + 1
		})
		checkHidden(t, n, sources)
	})
}

// TestInterleavedCredentialIsHiddenThreat37: a provider that writes several texts in turns, each with the credential in
// it. With the one tail of a choice that there was before it fails, and so it does without textTail.given.
func TestInterleavedCredentialIsHiddenThreat37(t *testing.T) {
	texts := func() (all [][]byte) {
		for i := range 6 {
			all = append(all, []byte(fmt.Sprintf("%d says %s, %s and s", i, canary, echoShifted)))
		}
		return all
	}
	for round := range uint64(300) {
		random := rand.New(rand.NewPCG(round, 37))
		n := newNeedleSet([]byte(canary))
		sources := answerOf(texts(), random.IntN(60))
		most := 1 + random.IntN(12)
		s := &eventScrubber{scrub: scrubber{needles: n}, choices: map[int]*choiceTexts{}}
		writeAnswer(t, s, sources, func(open int) (int, int) { return random.IntN(open), 1 + random.IntN(most) })
		checkHidden(t, n, sources)
	}
}

// TestRunInTurnsThreat37: a provider that writes the credential of a lease letter by letter, into thoughts, text and two calls
// by turns. Without a tail for each text it comes out of all of them.
func TestRunInTurnsThreat37(t *testing.T) {
	spec := slotted(httpProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, c := range strings.Split(canary, "") {
			for _, delta := range []string{
				`{"reasoning_content":%q}`, `{"content":%q}`,
				`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":%q}}]}`,
				`{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":%q}}]}`,
			} {
				fmt.Fprintf(w, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":"+delta+"}]}\n\n", c)
			}
		}
		io.WriteString(w, lastChunk+doneEvent)
	}))
	a := testAgent(t, spec)
	l := newLoans(t, a, spec)
	r := normalizedRun(t)
	r.open.RunId = string(execution.NewRunID())
	r.keeper, r.lease = l.keeper, l.lendRun(t, r)
	if end := serveNow(t, a, r); end.Outcome != execution.Completed {
		t.Fatalf("ended as %+v", end)
	}
	var c execution.Collector
	for _, e := range r.events(t) {
		if err := c.Add(&e); err != nil {
			t.Fatal(err)
		}
	}
	choice := c.Result().Choices[0]
	var thought strings.Builder
	for _, part := range choice.Reasoning {
		thought.WriteString(part.Text)
	}
	const telling = 3
	hidden := canary[:telling] + strings.Repeat("*", len(canary)-telling)
	got := []string{thought.String(), choice.Text, choice.ToolCalls[0].Arguments, choice.ToolCalls[1].Arguments}
	if want := []string{hidden, hidden, hidden, hidden}; !slices.Equal(got, want) {
		t.Errorf("the answer is %q", got)
	}
}

// scrubAll pushes events and returns what goes on, one line for each.
func scrubAll(t *testing.T, s *eventScrubber, events ...execution.Event) (lines []string, err error) {
	t.Helper()
	emit := func(e *execution.Event) error {
		lines = append(lines, fmt.Sprintf("%d.%d %s", e.Kind, e.Call.Index, *textOf(e)))
		return nil
	}
	for _, e := range events {
		if err = s.push(&e, emit); err != nil {
			break
		}
	}
	if end := s.finish(emit); err == nil {
		err = end
	}
	return lines, err
}

// TestScrubberKeepsOrder: an answer without the credential goes on as it came, though its texts end with its first
// letters; what looks more like it waits, and comes when its text ends.
func TestScrubberKeepsOrder(t *testing.T) {
	text := func(s string) execution.Event { return execution.Event{Kind: execution.EventText, Text: s} }
	thought := func(s string) execution.Event { return execution.Event{Kind: execution.EventReasoning, Text: s} }
	call := func(i int, s string) execution.Event {
		return execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: i, Arguments: s}}
	}
	for _, tt := range []struct {
		events []execution.Event
		want   string
	}{
		{[]execution.Event{thought("yes"), text("it is"), call(0, "{}")}, "3.0 ye|3.0 s|2.0 it i|2.0 s|4.0 {}"},
		{[]execution.Event{text("ab"), text("cs"), text("de")}, "2.0 ab|2.0 c|2.0 sde"},
		{[]execution.Event{text("my " + canary[:9]), call(0, "{}"), text("no")}, "2.0 my |4.0 {}|2.0 " + canary[:9] + "no"},
		{[]execution.Event{text(canary[:5]), thought(canary[:7]), call(0, "{}")}, "4.0 {}|2.0 " + canary[:5] + "|3.0 " + canary[:7]},
		{[]execution.Event{call(0, canary[:20]), call(1, "{}"), call(0, canary[20:]+"!")}, "4.1 {}|4.0 " + strings.Repeat("*", len(canary)) + "!"},
		{[]execution.Event{text(canary[:2]), call(0, "{}"), text(canary[2:])}, "2.0 " + canary[:2] + "|4.0 {}|2.0 " + strings.Repeat("*", len(canary)-2)},
	} {
		got, err := scrubAll(t, leasedCredential([]byte(canary)).eventScrubber(), tt.events...)
		if strings.Join(got, "|") != tt.want || err != nil {
			t.Errorf("%q, %v\nwant %q", strings.Join(got, "|"), err, tt.want)
		}
	}
}

// TestScrubberFailsClosed: an answer of more texts than the scrubber can follow ends, and nothing of what waits goes on.
func TestScrubberFailsClosed(t *testing.T) {
	var many []execution.Event
	for i := range maxTails + 1 {
		many = append(many, execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: i, Arguments: canary[:20]}})
	}
	say := execution.Event{Kind: execution.EventText, Text: canary[:10]}
	refuse := execution.Event{Kind: execution.EventRefusal, Text: "no"}
	for name, events := range map[string][]execution.Event{"many": many, "alternates": {say, refuse, say}} {
		got, err := scrubAll(t, leasedCredential([]byte(canary)).eventScrubber(), events...)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if name == "many" && len(got) > 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
	whole := many[:0]
	for i := range execution.MaxToolCalls {
		whole = append(whole, execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: i, Arguments: `{"a":"sk-"}`}})
	}
	if got, err := scrubAll(t, leasedCredential([]byte(canary)).eventScrubber(), whole...); err != nil || len(got) != len(whole) {
		t.Errorf("%d calls: %d events, %v", len(whole), len(got), err)
	}
}

// BenchmarkScrubEvents is a piece of text without the credential.
func BenchmarkScrubEvents(b *testing.B) {
	s := leasedCredential([]byte(canary)).eventScrubber()
	e := &execution.Event{Kind: execution.EventText, Text: " a piece of text"}
	emit := func(*execution.Event) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := s.push(e, emit); err != nil {
			b.Fatal(err)
		}
	}
}
