package openai

// rerankFrame is about how many bytes of a request to rerank are names and parameters.
const rerankFrame = 64

// RerankReads returns how many bytes a provider reads of a request to rerank: each document, and the rest of the request, which
// is the query, once for each document. What the documents are called and how they are nested is the provider's to know, so they
// are the longest list among the root's members, or among those of an object there.
func RerankReads(body []byte) int64 {
	list, most := 0, 0
	take := func(value []byte) {
		n := 0
		for el := arrayElements(value); el.next(); {
			n++
		}
		if n > most {
			list, most = len(value), n
		}
	}
	for m := objectMembers(body); m.next(); {
		take(m.val)
		for inner := objectMembers(m.val); inner.next(); {
			take(inner.val)
		}
	}
	query := max(len(body)-list-rerankFrame, 0)
	return int64(len(body)) + int64(max(most-1, 0))*int64(query)
}

// Reranks reports whether the operation ranks documents by a query.
func (o OpID) Reranks() bool { return o == OpRerank || o == OpRerankRoot || o == OpRerankV2 }
