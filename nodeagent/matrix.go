package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"iop/openai"
)

// This file finds out which operations a provider truly has. Names and versions of engines say little: a proxy or a build
// option takes paths away, and every release adds some.

// pathNowhere exists at no provider. What is said of it is what the provider says of a path that it does not have.
const pathNowhere = "/v1/iop-no-such-path"

// probeBody is no JSON: whoever has the path refuses it before anything is run, loaded or billed, and before it looks for a
// model, whose absence some report as a path's.
const probeBody = `{"iop":`

const (
	// mapAgain is how often the paths are looked for while the provider lives. It is looked sooner when the provider was gone,
	// or turned out to be another program or version.
	mapAgain = time.Hour
	// mapTimeout bounds one search, mapAtOnce how many questions are open at once.
	mapTimeout = 4 * time.Second
	mapAtOnce  = 4
	// maxProbeAnswer is how much of an answer is looked at.
	maxProbeAnswer = 4 << 10
)

// matrix is which operations a provider has. The zero value knows nothing.
type matrix struct {
	operations openai.OpSet
	known      bool
}

// names are the operations as they travel, in the order of the table.
func (m matrix) names() []string {
	var names []string
	for _, op := range openai.Operations() {
		if m.operations.Has(op.ID) {
			names = append(names, op.Name)
		}
	}
	return names
}

// runs reports whether an adapter of that name can run normalized runs on the provider: Chat Completions must be there, as
// servers that speak the protocol for other things alone do not have it.
func (m matrix) runs(adapter string) bool {
	if adapters[adapter] == nil {
		return false
	}
	return adapter != OpenAIEngine.traits().adapter || !m.known || m.operations.Has(openai.OpChatCompletions)
}

func setOf(ids ...openai.OpID) (s openai.OpSet) {
	for _, id := range ids {
		s = s.With(id)
	}
	return s
}

// knownMatrix is what is known of a provider beforehand, for where it can't be asked: what current versions of its engine
// have. It knows nothing of a server that only speaks OpenAI's protocol.
func (p *provider) knownMatrix(engine Engine) matrix {
	if engine == OpenAIEngine && !p.isOpenAIHost() {
		return matrix{}
	}
	operations := engine.traits().operations
	return matrix{operations, operations != 0}
}

// errInconclusive says that a provider's answers do not tell which paths it has.
var errInconclusive = errors.New("the provider's answers do not show which paths it has")

// askPaths asks a provider for each operation's path, at no cost to it. errInconclusive: it answers so to any path, or is
// too busy. Any other error means that it gave no answer.
func (p *provider) askPaths(ctx context.Context) (matrix, error) {
	if p.leased() {
		return matrix{}, errInconclusive // without a key, and the key comes with runs alone
	}
	nowhere, err := p.knock(ctx, pathNowhere)
	if err != nil {
		return matrix{}, err
	}
	if nowhere.status != http.StatusNotFound && nowhere.status != http.StatusMethodNotAllowed && nowhere.status != http.StatusNotImplemented {
		return matrix{}, errInconclusive
	}
	m := matrix{known: true}
	answers, err := p.knockAll(ctx)
	if err != nil {
		return matrix{}, err
	}
	for id, a := range answers {
		switch {
		case a.status == http.StatusTooManyRequests, a.status >= http.StatusBadGateway && a.status <= http.StatusGatewayTimeout:
			return matrix{}, errInconclusive
		case a.exists(nowhere):
			m.operations = m.operations.With(id)
		}
	}
	return m, nil
}

// knockAll asks for all paths, a few at a time.
func (p *provider) knockAll(ctx context.Context) (map[openai.OpID]answer, error) {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		answers = map[openai.OpID]answer{} // guarded by mu
		failure error                      // guarded by mu
	)
	places := make(chan struct{}, mapAtOnce)
	for _, op := range openai.Operations() {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			a, err := p.knock(ctx, op.UpstreamPath)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failure = err
			}
			answers[op.ID] = a
		})
	}
	wg.Wait()
	return answers, failure
}

// exists tells the answer of an endpoint from that of a path that is not there. A server that has the path may say 404
// of the model, and then not what it says of a path; 501 is that of an engine whose build or model can't do it.
func (a answer) exists(nowhere answer) bool {
	switch {
	case a.status >= 300 && a.status < 400: // nobody follows it
		return false
	case a.status == http.StatusMethodNotAllowed, a.status == http.StatusNotImplemented:
		return false
	case a.status == http.StatusNotFound:
		return strings.Contains(strings.ToLower(string(a.body)), "model") && !strings.Contains(strings.ToLower(string(nowhere.body)), "model")
	}
	return true
}

// knock makes one POST that no endpoint can serve.
func (p *provider) knock(ctx context.Context, path string) (answer, error) {
	u := p.endpoint(path)
	req := (&http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Accept": jsonType, "Accept-Encoding": plainCoding, "Content-Type": jsonType, "User-Agent": userAgent},
		Body:          io.NopCloser(strings.NewReader(probeBody)),
		ContentLength: int64(len(probeBody)),
		GetBody:       func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(probeBody)), nil },
	}).WithContext(ctx)
	if p.engine() == AnthropicEngine {
		req.Header["Anthropic-Version"] = []string{anthropicAPIVersion}
	}
	p.key.Load().authorize(req.Header)
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return answer{}, fmt.Errorf("ask for %s: %w", path, err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := io.Copy(&body, io.LimitReader(resp.Body, maxProbeAnswer)); err != nil {
		return answer{}, fmt.Errorf("ask for %s: %w", path, err)
	}
	return answer{status: resp.StatusCode, body: body.Bytes()}, nil
}

// explore looks for the provider's paths, if it is time to. ok is false where the former answer stands.
func (b *prober) explore(parent context.Context, id nature) (m matrix, ok bool) {
	engine, changed := b.p.engine(), id.engine != "" && (id.engine != b.mappedAs.engine || id.version != b.mappedAs.version)
	if !b.mapped.IsZero() && !changed && time.Since(b.mapped) < mapAgain {
		return m, false
	}
	if id.engine != "" {
		engine = id.engine
	}
	ctx, cancel := context.WithTimeout(parent, mapTimeout)
	defer cancel()
	first := b.mapped.IsZero()
	m, err := b.p.askPaths(ctx)
	b.mapped = time.Now()
	switch {
	case errors.Is(err, errInconclusive):
		m = b.p.knownMatrix(engine)
	case err != nil:
		b.mapped = b.mapped.Add(askAgain - mapAgain) // sooner again
		if !first {
			return m, false
		}
		m = b.p.knownMatrix(engine)
	case engine == AnthropicEngine && b.p.isAnthropicHost():
		// It has Chat Completions to try things out, and leaves out in silence what Messages does not know.
		m.operations &^= setOf(openai.OpChatCompletions)
	}
	if id.engine != "" {
		b.mappedAs = nature{engine: id.engine, version: id.version}
	}
	return m, true
}
