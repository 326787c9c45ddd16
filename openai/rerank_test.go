package openai

import (
	"fmt"
	"strings"
	"testing"
)

// Each document is read with the query, whatever they are called and wherever they stand.
func TestRerankReads(t *testing.T) {
	query := strings.Repeat("word ", 1000)
	documents := strings.TrimSuffix(strings.Repeat(`"a",`, 500), ",")
	const least, most = 500 * 4900, 500*5000 + 20_000
	for _, body := range []string{
		`{"model":"m","query":%q,"documents":[%s]}`,
		`{"model":"m","query":%q,"texts":[%s]}`,
		`{"model":"m","query":%q,"docum\u0065nts":[%s]}`,
		`{"model":"m","query":{"text":%q},"documents":{"content":[%s]},"rank_fields":["text"]}`,
		`{"model":"m","query":[{"type":"text","text":%q}],"documents":[%s]}`,
	} {
		if got := RerankReads(fmt.Appendf(nil, body, query, documents)); got < least || got > most {
			t.Errorf("%.60s: %d bytes", body, got)
		}
	}
	decoy := fmt.Appendf(nil, `{"query":%q,"documents":[%s],"x":[%s,1]}`, query, documents, documents)
	if got := RerankReads(decoy); got < least {
		t.Errorf("with a longer list beside the documents: %d bytes", got)
	}
	for _, body := range []string{`{"model":"m","query":"what?","documents":["one","two","three"],"top_n":2}`, `{"model":"m"}`, `{"documents":[]}`, `{}`} {
		if got := RerankReads([]byte(body)); got < int64(len(body)) || got > 2*int64(len(body)) {
			t.Errorf("%s: %d bytes", body, got)
		}
	}
}
