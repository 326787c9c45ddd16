package sim

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image/png"
	"strings"
	"testing"
)

// checkWAV reads the head of a WAV file and compares its sizes with the file's.
func checkWAV(t *testing.T, b []byte) {
	t.Helper()
	le := func(at, n int) (v int) {
		for i := n - 1; i >= 0; i-- {
			v = v<<8 | int(b[at+i])
		}
		return v
	}
	if len(b) < 44 || string(b[:4]) != "RIFF" || string(b[8:16]) != "WAVEfmt " || string(b[36:40]) != "data" {
		t.Fatalf("no WAV: %q", b[:min(44, len(b))])
	}
	if le(4, 4) != len(b)-8 || le(40, 4) != len(b)-44 || le(24, 4) != sampleRate || le(28, 4) != sampleRate*2 || le(22, 2) != 1 || le(34, 2) != 16 {
		t.Errorf("head %v for %d bytes", b[:44], len(b))
	}
	silent := true
	for _, v := range b[44:] {
		silent = silent && v == 0
	}
	if silent {
		t.Error("no sound")
	}
}

func TestWhenToolsAreCalled(t *testing.T) {
	r := start(t, nil)
	for _, c := range []struct {
		text, choice, knobs string
		calls               int
	}{
		{"hello", `"auto"`, "", 0},
		{"use a tool", `"auto"`, "", 1},
		{"use alpha and beta", `"auto"`, "", 2},
		{"use alpha", `"none"`, "", 0},
		{"hello", `"required"`, "", 1},
		{"hello", `{"type":"function","function":{"name":"beta"}}`, "", 1},
		{"hello", `"auto"`, "tools=3", 3},
		{"use alpha", `"auto"`, "tools=0", 0},
	} {
		a := r.post(chatPath, `{"model":"sim-small","user":"sim:`+c.knobs+`","messages":[{"role":"user","content":"`+c.text+`"}],"tool_choice":`+c.choice+
			`,"tools":[{"type":"function","function":{"name":"alpha"}},{"type":"function","function":{"name":"beta","parameters":{"type":"object"}}}]}`)
		if n := strings.Count(a.body, `"arguments":"{}"`); n != c.calls || a.StatusCode != 200 {
			t.Errorf("%+v: %d calls in %s", c, n, a.body)
		}
	}
}

func TestEmbeddingsInBase64(t *testing.T) {
	r := start(t, nil)
	var a struct{ Data []struct{ Embedding string } }
	r.decode(r.post("/v1/embeddings", `{"model":"sim-embed","input":"a","encoding_format":"base64","dimensions":5}`), &a)
	b, err := base64.StdEncoding.DecodeString(a.Data[0].Embedding)
	if err != nil || len(b) != 20 || a.Data[0].Embedding != packed(vector("a", 5)) {
		t.Errorf("%v, %d bytes", err, len(b))
	}
}

func TestSpeechEvents(t *testing.T) {
	r := start(t, nil)
	a := r.post("/v1/audio/speech", `{"model":"sim-audio","input":"sim:tokens=3 x","voice":"a","stream_format":"sse"}`)
	var wav []byte
	for line := range strings.SplitSeq(a.body, "\n") {
		var e struct{ Type, Audio string }
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			b, err := base64.StdEncoding.DecodeString(e.Audio)
			if err != nil {
				t.Fatal(err)
			}
			wav = append(wav, b...)
		}
	}
	checkWAV(t, wav)
	if !strings.Contains(a.body, `"speech.audio.done"`) {
		t.Error("no end")
	}
}

func TestTranscriptFormats(t *testing.T) {
	r := start(t, nil)
	for format, want := range map[string]string{
		"text": "Heard 4 bytes of a.wav:", "srt": "1\n00:00:00,000 --> 00:00:00,000\nHeard", "vtt": "WEBVTT\n\n00:00:00.000 --> ", "nope": `{"error"`,
	} {
		body := strings.ReplaceAll("--B\nContent-Disposition: form-data; name=\"model\"\n\nsim-audio\n--B\nContent-Disposition: form-data; name=\"response_format\"\n\n"+format+
			"\n--B\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\n\nRIFF\n--B--\n", "\n", "\r\n")
		if a := r.do("POST", "/v1/audio/transcriptions", body, "Content-Type", "multipart/form-data; boundary=B"); !strings.HasPrefix(a.body, want) {
			t.Errorf("%s: %q", format, a.body)
		}
	}
	for _, body := range []string{"", "--B--\r\n", "--B\r\nrubbish"} {
		if a := r.do("POST", "/v1/audio/transcriptions", body, "Content-Type", "multipart/form-data; boundary=B"); a.StatusCode != 400 {
			t.Errorf("%q: %d", body, a.StatusCode)
		}
	}
	if a := r.post("/v1/audio/transcriptions", "{}"); a.StatusCode != 400 {
		t.Errorf("no form: %d", a.StatusCode)
	}
}

func TestResponsesFailure(t *testing.T) {
	r := start(t, nil)
	a := r.post("/v1/responses", `{"model":"sim-small","stream":true,"user":"sim:error_event_mid=1","input":"x"}`)
	events := strings.Split(strings.TrimSpace(a.body), "\n\n")
	if n := len(events); !strings.HasPrefix(events[n-2], "event: error\n") || !strings.HasPrefix(events[n-1], "event: response.failed\n") || !strings.Contains(events[n-1], `"status":"failed"`) {
		t.Errorf("%s", a.body)
	}
}

func TestPicturesArePNG(t *testing.T) {
	one, other := picture("a cat", 0), picture("a cat", 1)
	img, err := png.Decode(bytes.NewReader(one))
	if err != nil || img.Bounds().Dx() != imageSide || bytes.Equal(one, other) || !bytes.Equal(one, picture("a cat", 0)) {
		t.Errorf("%v", err)
	}
}

func TestSpeechIsWAV(t *testing.T) {
	r := start(t, nil)
	a := r.post("/v1/audio/speech", `{"model":"sim-audio","input":"say something","voice":"a"}`)
	if a.Header.Get("Content-Type") != "audio/wav" || a.err != nil {
		t.Errorf("%v %v", a.Header, a.err)
	}
	checkWAV(t, []byte(a.body))
}
