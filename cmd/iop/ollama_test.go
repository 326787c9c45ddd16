package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/gateway/admin"
)

func TestNodeShow(t *testing.T) {
	reconnects, up := uint64(2), int64(7_200_000)
	f := newFakeAdmin(t, map[string]any{
		"/admin/v1/nodes/n1": admin.Node{Node: "n1", State: "online", Sessions: []admin.Session{}},
		"/admin/v1/nodes/n1/capabilities": admin.NodeCapabilities{
			Node: "n1", Generation: 7, Version: "v1", Labels: map[string]string{"site": "lab"},
			Providers: []admin.Capability{{
				ID: "ollama-1", Adapter: "ollama", Engine: "ollama", EngineVersion: "0.12.6", Health: "ok", Capacity: 4, InFlight: 1, Normalized: true,
				Operations: []string{"chat.completions", "ollama.chat"}, OperationsKnown: true,
				Models: []admin.CapabilityModel{{ID: "a"}, {ID: "b", Loaded: true}},
			}, {
				ID: "vllm", Adapter: "openai", Health: "hung", Capacity: 8, OperationsKnown: true, Operations: []string{"chat.completions", "embeddings"},
			}, {ID: "old", Adapter: "openai", Health: "unknown", Capacity: 1}},
		},
		"/admin/v1/nodes/n1/transport": admin.NodeTransport{
			Node: "n1", Edge: admin.Transport{Generation: 7, UptimeMS: 61_000, HeartbeatRTTMS: 1.25, SessionWindow: 262144, FramesSent: 5},
			AtNode: admin.Transport{Generation: 7, UptimeMS: 60_000, QueuedBytes: 1500, StalledRuns: 1, OpenRuns: 2, Reconnects: &reconnects, ProcessUptimeMS: &up},
		},
	})
	shows(t, "nodes show n1", `
n1  online, generation 7, version v1
label site=lab

PROVIDER  ENGINE  VERSION  ADAPTER  HEALTH   LOAD  NORMALIZED  MODELS
ollama-1  ollama  0.12.6   ollama   ok       1/4   yes         a,b*
vllm      -       -        openai   hung     0/8   no          -
old       -       -        openai   unknown  0/1   no          -

OPERATION         ollama-1  vllm  old
chat.completions  yes       yes   ?
ollama.chat       yes       no    ?
embeddings        no        yes   ?

TRANSPORT        EDGE      NODE
generation       7         7
up               1m        1m
heartbeat        1.2ms     0.0ms
answered         0ms ago   0ms ago
draining         no        no
runs open        0         2
runs stalled     0         1
queued           0 B       1.5 kB
in flight        0 B       0 B
window           262.1 kB  0 B
frames sent      5         0
frames received  0         0
bytes sent       0 B       0 B
bytes received   0 B       0 B
reconnects       -         2
process up       -         2h
`)
	if !slices.Contains(f.asked, "GET /admin/v1/nodes/n1/transport") {
		t.Errorf("%q", f.asked)
	}
	if status, stdout, _ := execute(t, "nodes", "show", "n1", "--json"); status != exitOK || !strings.Contains(stdout, `"engine_version":"0.12.6"`) || !strings.Contains(stdout, `"edge_view"`) {
		t.Errorf("%d %s", status, stdout)
	}
}

// A Node that is not connected is shown as far as it is known; one that never was names the next step.
func TestNodeShowOffline(t *testing.T) {
	gone := admin.ErrorBody{Code: "node_not_found", Message: "no such node is connected"}
	newFakeAdmin(t, map[string]any{
		"/admin/v1/nodes/n1":              admin.Node{Node: "n1", State: "offline", LastSeen: time.Now().Add(-5 * time.Minute), LastCause: "heartbeat_timeout\x1b[2J"},
		"/admin/v1/nodes/n1/capabilities": gone, "/admin/v1/nodes/n2": gone,
	})
	status, stdout, stderr := execute(t, "nodes", "show", "n1")
	if status != exitOK || stdout != "n1  offline, last seen 5m ago: heartbeat_timeout\uFFFD[2J\n" {
		t.Errorf("%d %q %s", status, stdout, stderr)
	}
	if status, _, stderr := execute(t, "nodes", "show", "n2"); status != exitFailed || !strings.Contains(stderr, "iop nodes lists") {
		t.Errorf("%d %s", status, stderr)
	}
	if status, _, stderr := execute(t, "nodes", "show"); status != exitUsage || !strings.Contains(stderr, "the Node's name") {
		t.Errorf("%d %s", status, stderr)
	}
}

// ollamaAnswer is the API's answer with Ollama's in it.
func ollamaAnswer(result string) string {
	return fmt.Sprintf(`{"node":"n1","provider":"p","operation":"x","result":%s}`, result)
}

func TestOllamaLists(t *testing.T) {
	f := newFakeAdmin(t, map[string]any{
		"/admin/v1/nodes/n1/ollama/tags":   ollamaAnswer(`{"models":[{"name":"a:8b","digest":"sha256:0123456789abcdef","size":4912898304}]}`),
		"/admin/v1/nodes/n1/ollama/ps":     ollamaAnswer(`{"models":[{"name":"a:8b","digest":"01","size":5000,"size_vram":4000,"context_length":8192}]}`),
		"/admin/v1/nodes/n1/ollama/show":   ollamaAnswer(`{"details":{"family":"llama","parameter_size":"8B","quantization_level":"Q4","format":"gguf"},"model_info":{"llama.context_length":8192},"capabilities":["completion","tools"]}`),
		"/admin/v1/nodes/n1/ollama/delete": ollamaAnswer(`null`),
	})
	shows(t, "ollama list n1", `
NAME  ID            SIZE    MODIFIED
a:8b  0123456789ab  4.9 GB  -
`)
	shows(t, "ollama ps n1", `
NAME  ID  SIZE    VRAM    CONTEXT  UNTIL
a:8b  01  5.0 kB  4.0 kB  8192     -
`)
	shows(t, "ollama show n1 a:8b --provider p", `
MODEL  FAMILY  PARAMETERS  QUANTIZATION  FORMAT  CONTEXT  CAPABILITIES
a:8b   llama   8B          Q4            gguf    8192     completion,tools
`)
	shows(t, "ollama rm n1 a:8b", "a:8b is deleted from n1")
	if last := f.asked[len(f.asked)-2:]; !slices.Equal(last, []string{"POST /admin/v1/nodes/n1/ollama/show?provider=p", "POST /admin/v1/nodes/n1/ollama/delete"}) {
		t.Errorf("%q", f.asked)
	}
	if status, stdout, _ := execute(t, "ollama", "rm", "n1", "a:8b", "--json"); status != exitOK || !strings.Contains(stdout, `"result":null`) {
		t.Errorf("%d %s", status, stdout)
	}
}

// Without a terminal a pull's progress is a line for each step, a tenth of a layer at least.
func TestOllamaPull(t *testing.T) {
	const progress = `{"status":"pulling manifest"}
{"status":"pulling aa","digest":"sha256:aa","total":1000}
{"status":"pulling aa","digest":"sha256:aa","total":1000,"completed":10}
{"status":"pulling aa","digest":"sha256:aa","total":1000,"completed":500}
{"status":"pulling aa","digest":"sha256:aa","total":1000,"completed":1000}
{"status":"pulling bb","digest":"sha256:bb","total":5}
{"status":"verifying\u001b[2J"}
{"status":"success"}
`
	f := newFakeAdmin(t, map[string]any{"/admin/v1/nodes/n1/ollama/pull": progress})
	shows(t, "ollama pull n1 a:8b", `
pulling manifest
pulling aa 0% of 1.0 kB
pulling aa 50% of 1.0 kB
pulling aa 100% of 1.0 kB
pulling bb 0% of 5 B
verifying`+"\uFFFD"+`[2J
a:8b is on n1
`)
	if status, stdout, _ := execute(t, "ollama", "pull", "n1", "a:8b", "--json"); status != exitOK || stdout != progress {
		t.Errorf("%d %q", status, stdout)
	}
	for body, want := range map[string]string{
		`{"status":"pulling manifest"}` + "\n" + `{"error":"pull model manifest: file does not exist"}`: "a:8b was not pulled: pull model manifest",
		`{"status":"pulling manifest"}`: "ended early",
		`<html>`:                        "not pull progress in Ollama's format",
	} {
		f.answers["/admin/v1/nodes/n1/ollama/pull"] = body
		if status, _, stderr := execute(t, "ollama", "pull", "n1", "a:8b"); status != exitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s", body, status, stderr)
		}
	}
}

// Bars are drawn to their end, whatever the order of layers, and never past it.
func TestOllamaPullBars(t *testing.T) {
	var out bytes.Buffer
	p := &barPull{w: &out}
	for _, l := range []pullLine{
		{Status: "pulling manifest"}, {Status: "pulling manifest"}, {Status: "pulling aa", Digest: "aa", Total: 1000, Completed: 400},
		{Status: "pulling aa", Digest: "aa", Total: 1000, Completed: 5000}, {Status: "pulling bb", Digest: "bb", Total: 10, Completed: -1}, {Status: "verifying"},
	} {
		if err := p.line(&l, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.end()
	text := out.String()
	for _, want := range []string{"pulling manifest\n", "pulling aa", "100%", "pulling bb", "verifying\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	if strings.Count(text, "pulling manifest\n") != 1 {
		t.Errorf("a status twice: %q", text)
	}
}

// Each refusal says what to do next.
func TestOllamaNextSteps(t *testing.T) {
	for code, want := range map[string]string{
		"node_not_found": "iop nodes", "not_ollama": "iop nodes show n1", "provider_required": "--provider", "provider_not_found": "iop nodes show n1",
		"too_many_calls": "wait", "node_timeout": "iop nodes show n1", "provider_error": "iop ollama list n1",
	} {
		newFakeAdmin(t, map[string]any{"/admin/v1/nodes/n1/ollama/show": admin.ErrorBody{Code: code, Message: "it said no"}})
		if status, _, stderr := execute(t, "ollama", "show", "n1", "m"); status != exitFailed || !strings.Contains(stderr, "it said no") || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s", code, status, stderr)
		}
	}
	if status, _, stderr := execute(t, "ollama", "pull", "n1"); status != exitUsage || !strings.Contains(stderr, "the model's name") {
		t.Errorf("%d %s", status, stderr)
	}
}
