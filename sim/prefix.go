package sim

import (
	"container/list"
	"encoding/binary"
	"encoding/json"
	"hash/maphash"
	"sync"
	"time"
)

const (
	// blockTokens is how many tokens a prefix cache keeps or forgets at a time, as vLLM does.
	blockTokens = 16
	blockBytes  = blockTokens * 3 // see countTokens
	// maxPrefixCache keeps a cache below some hundred megabytes.
	maxPrefixCache = 50_000_000
)

// prefixCache remembers prompts by their beginning, a block at a time, as engines keep the attention state of theirs. A
// block is known by all that stands before it.
type prefixCache struct {
	seed     maphash.Seed
	capacity int // blocks; 0: it remembers nothing

	mu     sync.Mutex
	blocks map[uint64]*list.Element
	used   list.List // of uint64, the latest first
}

func newPrefixCache(tokens int) *prefixCache {
	return &prefixCache{seed: maphash.MakeSeed(), capacity: tokens / blockTokens, blocks: map[uint64]*list.Element{}}
}

// take returns how many bytes of the prompt's beginning were known, and remembers all of it.
func (c *prefixCache) take(model string, prompt []byte) (known int) {
	chain := c.chain(model, prompt)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range chain {
		if c.blocks[h] == nil {
			break
		}
		known += blockBytes
	}
	// The last first: of one prompt the end is forgotten before the beginning.
	for i := len(chain) - 1; i >= 0; i-- {
		c.touchLocked(chain[i])
	}
	return known
}

// chain is the prompt's whole blocks, each by its text and all before it; no more than are kept.
func (c *prefixCache) chain(model string, prompt []byte) []uint64 {
	chain := make([]uint64, 0, min(c.capacity, len(prompt)/blockBytes))
	var text [8 + blockBytes]byte
	h := maphash.String(c.seed, model)
	for ; len(prompt) >= blockBytes && len(chain) < c.capacity; prompt = prompt[blockBytes:] {
		binary.LittleEndian.PutUint64(text[:], h)
		copy(text[8:], prompt[:blockBytes])
		h = maphash.Bytes(c.seed, text[:])
		chain = append(chain, h)
	}
	return chain
}

func (c *prefixCache) touchLocked(h uint64) {
	if e := c.blocks[h]; e != nil {
		c.used.MoveToFront(e)
		return
	}
	if c.used.Len() >= c.capacity {
		delete(c.blocks, c.used.Remove(c.used.Back()).(uint64))
	}
	c.blocks[h] = c.used.PushFront(h)
}

func (c *prefixCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.blocks)
	c.used.Init()
}

// promptOf is what a request's prompt is known by: the JSON of it, in the order in which an engine reads it. It grows at
// its end when a conversation does. Tools come first in most engines' templates.
func promptOf(body []byte) []byte {
	var in struct {
		Tools        json.RawMessage `json:"tools"`
		System       json.RawMessage `json:"system"`
		Instructions json.RawMessage `json:"instructions"`
		Messages     json.RawMessage `json:"messages"`
		Input        json.RawMessage `json:"input"`
		Prompt       json.RawMessage `json:"prompt"`
	}
	if json.Unmarshal(body, &in) != nil {
		return nil // a form, whose prompt is short
	}
	var prompt []byte
	for _, part := range []json.RawMessage{in.Tools, in.System, in.Instructions, in.Messages, in.Input, in.Prompt} {
		prompt = append(prompt, part...)
	}
	return prompt
}

// prefill decides how much of the prompt is cached and how long the rest takes.
func (x *exchange) prefill(a *ask, body []byte) {
	c := x.s.config
	if c.PrefixCache == 0 && c.PrefillTokensPerSecond == 0 {
		return
	}
	x.cached = 0
	if prompt := promptOf(body); c.PrefixCache > 0 && len(prompt) > 0 {
		known := x.s.prefixes.take(a.model, prompt)
		// The last token is always computed: without it there is nothing to go on from.
		x.cached = max(0, min(a.input*known/len(prompt), a.input-1))
	}
	if x.k.cached != unset {
		x.cached = min(x.k.cached, a.input)
	}
	if rate := c.PrefillTokensPerSecond; rate > 0 {
		x.begun = x.begun.Add(time.Duration(float64(a.input-x.cached) / rate * float64(time.Second)))
	}
	x.s.ledger.prefilled(x.rec, a.input, x.cached)
}
