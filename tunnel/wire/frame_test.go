package wire

import (
	"bytes"
	"errors"
	"testing"
)

func TestFrameRoundTrip(t *testing.T) {
	want := []FrameHeader{
		{Type: TypeOpen, Stream: 7, Seq: 0},
		{Type: TypeBody, Flags: FlagBorder | FlagLast, Stream: 7, Seq: 1},
		{Type: TypeHeartbeat, Seq: 1<<32 - 1},
		{Type: Type(200), Flags: FlagIgnorable, Stream: 1<<32 - 1},
	}
	payloads := [][]byte{[]byte("open"), bytes.Repeat([]byte{'x'}, MaxPayload), nil, {1, 2, 3}}
	var message []byte
	for i, h := range want {
		message = AppendFrame(message, h, payloads[i])
	}
	for i := range want {
		h, payload, rest, err := Next(message)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		want[i].Length = uint32(len(payloads[i]))
		if h != want[i] || !bytes.Equal(payload, payloads[i]) {
			t.Fatalf("frame %d: got %+v and %d bytes, want %+v", i, h, len(payload), want[i])
		}
		message = rest
	}
	if len(message) != 0 {
		t.Fatalf("%d bytes left", len(message))
	}
}

func TestNextRefuses(t *testing.T) {
	good := AppendFrame(nil, FrameHeader{Type: TypeBody, Stream: 1}, []byte("hello"))
	oversized := AppendHeader(nil, FrameHeader{Type: TypeBody, Stream: 1, Length: MaxPayload + 1})
	reserved := bytes.Clone(good)
	reserved[3] = 1
	for _, c := range []struct {
		name    string
		message []byte
		want    error
	}{
		{"empty", nil, ErrNoFrame},
		{"half a header", good[:9], ErrTruncated},
		{"half a payload", good[:len(good)-1], ErrTruncated},
		{"oversized", append(oversized, make([]byte, MaxPayload+1)...), ErrTooLarge},
		{"reserved", reserved, ErrReserved},
		{"BODY on the session", AppendFrame(nil, FrameHeader{Type: TypeBody}, nil), ErrPlacement},
		{"REGISTER on a run", AppendFrame(nil, FrameHeader{Type: TypeRegister, Stream: 1}, nil), ErrPlacement},
	} {
		if _, _, _, err := Next(c.message); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestParseWindow(t *testing.T) {
	if n, err := ParseWindow(AppendWindow(nil, 65536)); n != 65536 || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
	for _, bad := range [][]byte{nil, {1}, {0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 1, 0}} {
		if _, err := ParseWindow(bad); err == nil {
			t.Errorf("% x was accepted", bad)
		}
	}
}

func FuzzNext(f *testing.F) {
	f.Add(AppendFrame(nil, FrameHeader{Type: TypeBody, Flags: FlagBorder, Stream: 3, Seq: 9}, []byte("data: x\n\n")))
	f.Add(AppendFrame(AppendFrame(nil, FrameHeader{Type: TypePhase, Stream: 1}, []byte{3}), FrameHeader{Type: TypeEnd, Stream: 1, Seq: 1}, nil))
	f.Add(AppendHeader(nil, FrameHeader{Type: TypeBody, Stream: 1, Length: 1 << 31}))
	f.Add([]byte{1, 0, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		var again []byte
		rest := message
		for len(rest) > 0 {
			h, payload, r, err := Next(rest)
			if err != nil {
				break
			}
			if len(r) >= len(rest) {
				t.Fatal("no progress")
			}
			again = AppendFrame(again, h, payload)
			rest = r
		}
		if !bytes.HasPrefix(message, again) {
			t.Fatal("frames do not encode to what they were decoded from")
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	payload := bytes.Repeat([]byte{'x'}, 220)
	var buf []byte
	b.ReportAllocs()
	b.SetBytes(int64(HeaderSize + len(payload)))
	for b.Loop() {
		buf = AppendFrame(buf[:0], FrameHeader{Type: TypeBody, Stream: 1, Seq: 2}, payload)
		if _, _, _, err := Next(buf); err != nil {
			b.Fatal(err)
		}
	}
}
