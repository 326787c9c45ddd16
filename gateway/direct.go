package gateway

import (
	"net/http"
	"time"

	"iop/gateway/registry"
)

// On a calm link a chunk comes alone: the reader of the Node's session takes it off the socket, wakes the handler of
// the one request that it is for, and the handler writes it to the client. Of what that costs, the wake-up is the
// greater part: another thread is started for it, finds nothing to do and goes to sleep again. So while a handler
// waits in the middle of an event stream, the reader may write in its place, provided that it can't be held up:
// the write takes what the kernel takes at once and leaves the rest to a goroutine of its own.

// lend lets the session's reader pass on what comes for the stream. It is called when the stream's head is out.
func (x *exchange) lend(run registry.Run) {
	if x.cork == nil || !canWriteSome {
		return
	}
	run.Direct(func() bool { return x.passDirect(run) })
}

// passDirect writes the data that has arrived, without waiting for anything. False: it is the handler's to do.
func (x *exchange) passDirect(run registry.Run) bool {
	if !x.busy.TryLock() {
		return false // the handler is awake
	}
	defer x.busy.Unlock()
	if x.reply.gone || x.cork.lagging() {
		return false
	}
	data, border, ok := run.TakeData()
	if !ok {
		return false
	}
	return x.writeDirect(data, border)
}

// writeDirect is write for who must not wait.
func (x *exchange) writeDirect(data []byte, border bool) bool {
	now := time.Now()
	x.refreshDeadline(now)
	x.cork.hold()
	n, err := x.w.Write(data)
	if err == nil {
		err = http.NewResponseController(x.w).Flush()
	}
	if sent := x.cork.releaseNow(); err == nil {
		err = sent
	}
	x.reply.bytes += int64(n)
	x.rec.bytes.Store(x.reply.bytes)
	x.spoke, x.reply.border = now, border
	x.reply.remember(data)
	x.reply.relayed.note(data)
	x.chunks.note(now)
	x.reply.gone = err != nil
	return err == nil
}
