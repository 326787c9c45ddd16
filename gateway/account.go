package gateway

import (
	"log/slog"
	"time"

	"iop/execution"
	"iop/openai"
)

// finish closes the books of a run: the record, the metrics, and the one line in the log.
func (s *Server) finish(x *exchange, end ending) {
	x.named = x.rec.found() || !x.route.Advertised || s.adm.Knows(x.route)
	x.stats = s.routing.stats(x.route.Name, x.named)
	end.terminal.Usage = x.used(&end.terminal)
	if u := end.terminal.Usage; u.Output > 0 && !u.Estimated && end.terminal.Outcome == execution.Completed {
		if owner, ok := s.reg.Owner(x.ticket.Target); ok { // else its session is gone, and nobody can be asked
			x.stats.output.learn(owner, x.ticket.Target.Node, u.Output)
		}
	}
	end.terminal.Usage = plus(end.terminal.Usage, x.earlier)
	x.settle(&end)
	s.meter.Record(x.usageRecord(&end))
	s.runs.finish(x.rec, end)
	s.metrics.ended(x, &end)
	s.logRun(x, &end)
}

// refused answers a request that never became a run, and notes it.
func (s *Server) refused(x *exchange, e *openai.Error) {
	hurryBody(x.w, x.r)
	if x.key != nil {
		x.withdraw(e)
		x.limitHeaders(x.w.Header())
	}
	openai.WriteError(x.w, x.fam, x.requestID, e)
	s.metrics.refusal(x.op, e.Code)
	key, name := "", ""
	if x.key != nil {
		key, name = string(x.key.ID), x.key.Name
	}
	s.log.LogAttrs(x.r.Context(), slog.LevelInfo, "request",
		slog.String("method", x.r.Method), slog.String("op", x.op.Name), slog.String("model", x.env.Model),
		slog.String("request_id", x.requestID), slog.String("key", key), slog.String("key_name", name), slog.Int("status", e.Status),
		slog.String("outcome", execution.Rejected.String()), slog.String("code", e.Code),
		slog.Float64("duration_ms", millis(time.Since(x.started))),
	)
}

// logRun writes the one line of an ended run. Bodies, headers and secrets have no place in it.
func (s *Server) logRun(x *exchange, end *ending) {
	ctx := x.r.Context()
	if !s.log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	rec := x.rec
	rec.mu.Lock()
	target, upstream, reason, attempts, queued := rec.target, rec.upstream, rec.reason, rec.attempts, rec.queued
	how := rec.howLocked()
	rec.mu.Unlock()
	// A record made here: LogAttrs would look for the caller's line, at a tenth of the whole line's cost.
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
	r.AddAttrs(
		slog.String("method", x.r.Method),
		slog.String("op", rec.op),
		slog.String("model", rec.model),
		slog.String("route", rec.route),
		slog.String("upstream_model", upstream),
		slog.String("execution", how),
		slog.String("run_id", string(rec.id)),
		slog.String("request_id", rec.requestID),
		slog.String("key", string(rec.key)),
		slog.String("key_name", rec.keyName),
		slog.Int("status", end.status),
		slog.String("outcome", end.terminal.Outcome.String()),
		slog.String("code", end.terminal.Code.String()),
		slog.String("phase", end.terminal.Phase.String()),
		slog.String("node", string(target.Node)),
		slog.Uint64("generation", uint64(target.Generation)),
		slog.String("provider", string(target.Provider)),
		slog.String("reason", reason.String()),
		slog.Int("attempts", attempts),
		slog.Int64("queue_ms", queued.Milliseconds()),
		slog.Float64("ttfb_ms", millis(end.firstByte)),
		slog.Float64("duration_ms", millis(end.total)),
		slog.Int64("bytes", end.bytes),
	)
	if u := end.terminal.Usage; u.Known {
		r.AddAttrs(slog.Int64("input_tokens", u.Input), slog.Int64("output_tokens", u.Output))
	}
	if end.told != "" {
		r.AddAttrs(slog.String("client_code", end.told))
	}
	if end.terminal.Detail != "" {
		r.AddAttrs(slog.String("detail", end.terminal.Detail))
	}
	if rec.session != "" {
		r.AddAttrs(slog.String("session_id", rec.session))
	}
	if rec.clientID != "" {
		r.AddAttrs(slog.String("client_request_id", rec.clientID))
	}
	_ = s.log.Handler().Handle(ctx, r) // there is no other place to complain at
}

// millis is a duration in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
