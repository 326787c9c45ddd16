package tunnel

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"
)

// TestUnregisteredLevel: a peer that opens a tunnel only to close it, as iop doctor node does, is not worth a line; one that says
// something else than REGISTER is.
func TestUnregisteredLevel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leave func(*websocket.Conn) error
		want  slog.Level
	}{
		"closes the connection": {(*websocket.Conn).CloseNow, slog.LevelDebug},
		"closes the WebSocket":  {func(ws *websocket.Conn) error { return ws.Close(websocket.StatusNormalClosure, "") }, slog.LevelDebug},
		"says something else": {func(ws *websocket.Conn) error {
			return ws.Write(context.Background(), websocket.MessageText, []byte("hello"))
		}, slog.LevelInfo},
		"closes it with an error": {func(ws *websocket.Conn) error { return ws.Close(websocket.StatusProtocolError, "") }, slog.LevelInfo},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(chan slog.Level, 1)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ws, err := websocket.Accept(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer ws.CloseNow()
				got <- unregisteredLevel(messageConn{ws: ws}.receive((&NodeSession{}).takeRegister))
			}))
			defer srv.Close()
			ws, _, err := websocket.Dial(t.Context(), srv.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer ws.CloseNow()
			if err := c.leave(ws); err != nil {
				t.Error(err)
			}
			if level := <-got; level != c.want {
				t.Errorf("logged at %v", level)
			}
		})
	}
}
