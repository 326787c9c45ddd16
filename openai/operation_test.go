package openai

import (
	"strings"
	"testing"
)

// TestOperationNames pins what travels on the tunnel: append here, change nothing.
func TestOperationNames(t *testing.T) {
	names := "chat.completions completions embeddings responses moderations rerank rerank.root rerank.v2 images.generations images.edits " +
		"audio.speech audio.transcriptions audio.translations tokenize detokenize messages messages.count_tokens ollama.chat ollama.generate ollama.embed ollama.embeddings"
	for i, name := range strings.Fields(names) {
		id := OpID(i + 1)
		if got, ok := ParseOp(name); id.Name() != name || !ok || got != id {
			t.Errorf("operation %d is %q, want %q", id, id, name)
		}
	}
	if n := len(strings.Fields(names)); n != len(Operations()) {
		t.Errorf("%d operations, %d pinned", len(Operations()), n)
	}
	if _, ok := ParseOp(""); ok || OpID(200).Name() != "unknown_200" {
		t.Error("unknown operations must stay unknown")
	}
}

func TestOperations(t *testing.T) {
	for _, op := range Operations() {
		if op.Method != "POST" || !strings.HasPrefix(op.UpstreamPath, "/") || (!op.JSON && !op.Multipart) {
			t.Errorf("%+v", op)
		}
		if (op.Answer == AnswerSSE) && op.Stream == StreamNone || (op.IncludeUsage && op.Stream != StreamChat) {
			t.Errorf("%s: its answer and its stream disagree", op.Name)
		}
	}
	Operations()[0].Path = "/changed"
	if Operations()[0].Path == "/changed" {
		t.Error("the table can be changed from outside")
	}
}
