package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"iop/tunnel"
	"iop/tunnel/wire"
)

// hostile is a Node that speaks the wire protocol by hand.
type hostile struct {
	t   *testing.T
	ws  *websocket.Conn
	seq uint32
}

// joinHostile registers a Node under the name.
func (e *edge) joinHostile(t *testing.T, token, name string) *hostile {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(e.url(wire.Path), "http"), &websocket.DialOptions{
		Subprotocols: []string{wire.Subprotocol}, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(wire.MaxMessage)
	h := &hostile{t: t, ws: ws}
	h.send(wire.TypeRegister, &wire.RegisterRequest{ProtocolVersions: []uint32{1}, NodeName: name, BootId: name})
	return h
}

// send reports whether the frame went out.
func (h *hostile) send(typ wire.Type, m proto.Message) bool {
	payload, err := proto.Marshal(m)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.sendBytes(typ, payload)
}

func (h *hostile) sendBytes(typ wire.Type, payload []byte) bool {
	frame := wire.AppendFrame(nil, wire.FrameHeader{Type: typ, Seq: h.seq}, payload)
	h.seq++
	return h.ws.Write(context.Background(), websocket.MessageBinary, frame) == nil
}

// goodbye reads until the Edge says GOODBYE or acknowledges that id.
func (h *hostile) goodbye(acknowledged uint64) (code string) {
	for {
		_, message, err := h.ws.Read(context.Background())
		if err != nil {
			return "cut: " + err.Error()
		}
		for len(message) > 0 {
			f, payload, rest, err := wire.Next(message)
			if err != nil {
				h.t.Fatal(err)
			}
			message = rest
			var bye wire.Goodbye
			var refresh wire.Refresh
			switch {
			case f.Type == wire.TypeGoodbye && proto.Unmarshal(payload, &bye) == nil:
				return bye.Code
			case f.Type == wire.TypeRefresh && proto.Unmarshal(payload, &refresh) == nil && refresh.GetAck() != nil && refresh.Id == acknowledged:
				return ""
			}
		}
	}
}

// lastPage is the id of the last page of largestInventory.
const lastPage = 1 << 40

// largestInventory are the pages of the largest inventory that the contract allows, with nothing in it twice.
func largestInventory(t *testing.T) (pages [][]byte) {
	text := func(n int, parts ...any) string { return (fmt.Sprint(parts...) + strings.Repeat("x", n))[:n] }
	page := &wire.NodeRefresh{First: true, Providers: []*wire.Provider{{Id: "p", Adapter: "openai", Capacity: 1, Health: wire.Health_HEALTH_OK}}}
	const models = 16384
	for i := range models {
		m := &wire.Model{
			Provider: "p", Id: text(256, i, "."), OwnedBy: text(256, i), Digest: text(128, i), Family: text(64, i),
			ParameterSize: text(64, i), Quantization: text(64, i), ContextLength: 1, Size: 1,
		}
		for c := range 16 {
			m.Capabilities = append(m.Capabilities, text(32, c, ".", i, "."))
		}
		page.Models = append(page.Models, m)
		id := uint64(len(pages) + 1)
		if page.Last = i == models-1; page.Last {
			id = lastPage
		}
		if page.Last || len(page.Models) == 20 {
			payload, err := proto.Marshal(&wire.Refresh{Id: id, Kind: &wire.Refresh_Node{Node: page}})
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, payload)
			page = &wire.NodeRefresh{}
		}
	}
	return pages
}

func retained() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestInventoriesStayWithinTheirBudget: twenty Nodes of one join token, each with the largest inventory that the contract
// allows, take no more of the Edge's memory than the token may have, and what is charged is no less than what is taken.
//
// Before, each of them took 58 MB.
func TestInventoriesStayWithinTheirBudget(t *testing.T) {
	e := newEdge(t, nil)
	const sessions = 20
	pages := largestInventory(t)
	before := retained()
	var nodes []*hostile
	ended := map[string]int{}
	for i := range sessions {
		h := e.joinHostile(t, e.join, fmt.Sprint("hostile-", i))
		nodes = append(nodes, h)
		for _, page := range pages {
			if !h.sendBytes(wire.TypeRefresh, page) {
				break
			}
		}
		if code := h.goodbye(lastPage); code != "" {
			ended[code]++
			continue
		}
		h.send(wire.TypeReady, &wire.NodeReadyRequest{})
		e.eventually("it is online", func() bool { return e.nodeState(fmt.Sprint("hostile-", i)) == "online" })
	}
	grown := retained() - before
	t.Logf("%d sessions: %d MB are retained; ended: %v", sessions, grown>>20, ended)
	if grown > tunnel.DefaultAccountBytes {
		t.Errorf("the Edge retains %d bytes, over the token's %d", grown, tunnel.DefaultAccountBytes)
	}
	if ended["token_limit"] == 0 {
		t.Errorf("no session was ended with token_limit: %v", ended)
	}
	for _, h := range nodes {
		_ = h.ws.CloseNow()
	}
	runtime.KeepAlive(pages)
	e.eventually("the memory comes back", func() bool {
		time.Sleep(10 * time.Millisecond)
		return retained()-before < 8<<20
	})
}
