package nodeagent

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseSpec(t *testing.T) {
	tests := []struct {
		in   string
		want ProviderSpec
	}{
		{"ollama=http://127.0.0.1:11434", ProviderSpec{ID: "ollama", URL: "http://127.0.0.1:11434"}},
		{"gpu0:vllm=http://h:8000/v1,capacity=64", ProviderSpec{ID: "gpu0", Engine: VLLMEngine, URL: "http://h:8000", Capacity: 64}},
		{"a=http://h/v1/", ProviderSpec{ID: "a", URL: "http://h"}},
		{"a=http://h/", ProviderSpec{ID: "a", URL: "http://h"}},
		{"a=https://H.Example/openai/v1", ProviderSpec{ID: "a", URL: "https://h.example/openai"}},
		{"a=http://[::1]:8000", ProviderSpec{ID: "a", URL: "http://[::1]:8000"}},
		{"a:openai=https://h,models=org/x:8b|y,key-file=/run/key", ProviderSpec{ID: "a", Engine: OpenAIEngine, URL: "https://h", Models: []string{"org/x:8b", "y"}, KeyFile: "/run/key"}},
		{"a=https://h.example,models=m,slots=openai-*|x.y:z?", ProviderSpec{ID: "a", URL: "https://h.example", Models: []string{"m"}, Slots: []string{"openai-*", "x.y:z?"}}},
		{"a=http://10.0.0.7,slots=*,models=m", ProviderSpec{ID: "a", URL: "http://10.0.0.7", Models: []string{"m"}, Slots: []string{"*"}}},
		{"a=https://h,ca=/etc/ca.pem", ProviderSpec{ID: "a", URL: "https://h", CAFile: "/etc/ca.pem"}},
	}
	for _, tt := range tests {
		got, err := ParseSpec(tt.in)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, %v, want %+v", tt.in, got, err, tt.want)
			continue
		}
		again, err := ParseSpec(got.String())
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%s: %q reads as %+v, %v", tt.in, got.String(), again, err)
		}
	}
}

// TestParseSpecFaults: each error names the field at fault, and none repeats what may be a secret.
func TestParseSpecFaults(t *testing.T) {
	const canary = "c4n4ry"
	tests := []struct{ in, want string }{
		{"", "no id before the URL"},
		{"http://h", "no id before the URL"},
		{"=http://h", "id must have"},
		{"a b=http://h", "id may hold"},
		{strings.Repeat("a", 65) + "=http://h", "id must have"},
		{"a:=http://h", "adapter is empty"},
		{"a:gpt=http://h", "adapter is unknown"},
		{"a=", "URL must begin"},
		{"a=h:80", "URL must begin"},
		{"a=ftp://h", "URL must begin"},
		{"a=http://", "no host"},
		{"a=http://u:" + canary + "@h", "user or password"},
		{"a=http://h?key=" + canary, "query"},
		{"a=http://h?", "query"},
		{"a=http://h#x", "fragment"},
		{"a=http://h#", "fragment"},
		{"a=http://h:0", "port"},
		{"a=http://h:", "port"},
		{"a=http://h:99999", "port"},
		{"a=http://h/../admin", "dot segment"},
		{"a=http://h/a/./b", "dot segment"},
		{"a=http://h/%2e%2e", "escape"},
		{"a=http://h/a//b", "empty or dot segment"},
		{"a=http://h/a b", "escape"},
		{"a=http://h\r\nX: " + canary, "can't be read"},
		{"a=http://h,capacity=0", "capacity"},
		{"a=http://h,capacity=x" + canary, "capacity"},
		{"a=http://h,capacity=1,capacity=2", "capacity is given twice"},
		{"a=http://h,models=", "no value"},
		{"a=http://h,models=a||b", "models"},
		{"a=http://h,models=a|a", "models names"},
		{"a=http://h,models=\x00", "models"},
		{"a=http://h,key=" + canary, "key-file=PATH"},
		{"a=https://h,models=m,key-file=/k,slots=s", "be combined"},
		{"a=https://h,slots=s", "needs models"},
		{"a=http://h.example,models=m,slots=s", "https"},
		{"a=http://203.0.113.7,models=m,slots=s", "https"},
		{"a=https://h,models=m,slots=", "no value"},
		{"a=https://h,models=m,slots=a||b", "at position 2"},
		{"a=https://h,models=m,slots=a|a", "twice"},
		{"a=https://h,models=m,slots=[a]", "at position 1"},
		{"a=https://h,models=m,slots=a/b", "at position 1"},
		{"a=https://h,models=m,slots=" + strings.Repeat("a", 65), "at position 1"},
		{"a=https://h,models=m,slots=s" + strings.Repeat("|s", 64), "more than 64"},
		{"a=http://h,ca=/x", "ca needs"},
		{"a=https://h,ca=/x\x00", "ca must"},
		{"a=http://h,sk-" + canary, "no value"},
		{"a=http://h,x=" + canary, "unknown"},
		{"a=http://h," + strings.Repeat("x", maxSpecLength), "longer than"},
	}
	for _, tt := range tests {
		_, err := ParseSpec(tt.in)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.60q: error %v, want one with %q", tt.in, err, tt.want)
			continue
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%.60q: the error repeats the secret: %v", tt.in, err)
		}
	}
}

// FuzzProviderSpec: what parses has the promised form, and its text reads back as the same.
func FuzzProviderSpec(f *testing.F) {
	for _, s := range []string{
		"ollama=http://127.0.0.1:11434",
		"gpu0:vllm=http://h:8000/v1,capacity=64,models=a|b",
		"a=https://h/openai/v1,key-file=/run/secrets/key",
		"a=http://[::1]:8000", "a=http://[fe80::1%25eth0]:80/x", "a:=x", "=,=", "a=http://h/v1/v1",
		"a=https://h,models=m,slots=a|b*,ca=/ca.pem", "a=http://h,models=m,slots=?,slots=?", "a=http://1.2.3.4,models=m,slots=s",
		"a=http://h,models=\xff", "a=http://u:p@h", "a=http://h/%2f", "a=HTTP://H", "a=http://ünicode",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		spec, err := ParseSpec(s)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		base, err := parseBase(spec.URL)
		if err != nil {
			t.Fatalf("%q: its URL %q is not valid: %v", s, spec.URL, err)
		}
		if base.User != nil || base.RawQuery != "" || base.Fragment != "" || base.Hostname() == "" || strings.Contains(base.Path, "..") {
			t.Errorf("%q: URL %q", s, spec.URL)
		}
		again, err := ParseSpec(spec.String())
		if err != nil || !reflect.DeepEqual(again, spec) {
			t.Errorf("%q reads as %+v, its text %q as %+v, %v", s, spec, spec.String(), again, err)
		}
	})
}

func TestParseLabels(t *testing.T) {
	got, err := ParseLabels(" gpu=h100, site=lab-1 ,empty=")
	if err != nil || !reflect.DeepEqual(got, map[string]string{"gpu": "h100", "site": "lab-1", "empty": ""}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParseLabels(""); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"gpu", "=x", "a=1,a=2", "a=b c", "a=<script>", "ä=1", "a=" + strings.Repeat("x", 129)} {
		if _, err := ParseLabels(s); err == nil || !strings.HasPrefix(err.Error(), "labels: ") {
			t.Errorf("%q: error %v", s, err)
		}
	}
}

func TestEdgeURL(t *testing.T) {
	for in, want := range map[string]string{
		"wss://e.example/tunnel/v1": "wss://e.example/tunnel/v1",
		"https://e.example":         "wss://e.example/tunnel/v1",
		"http://127.0.0.1:8480/":    "ws://127.0.0.1:8480/tunnel/v1",
		"ws://h/other":              "ws://h/other",
		"":                          "", "h:80": "", "ftp://h": "", "wss://u:p@h": "", "wss://h?token=x": "", "wss://h#x": "",
		"edge.example": "", "https://e.example/v1": "", "wss://e.example/v1/": "",
	} {
		got, err := EdgeURL(in)
		if got != want || (want == "") != (err != nil) {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
}
