package nodeagent

import (
	"context"
	"time"

	"iop/execution"
	"iop/openai"
)

// This file ends runs whose provider reported an error inside its stream, after the client had seen some of it.

// failedPatience is how long a Responses stream may take from its error event to response.failed, which says it again
// and is the stream's proper end.
const failedPatience = 2 * time.Second

// reported decides what follows an error that has just been passed on, or was before. over is set where the run ends.
func (e *exchange) reported(failure *openai.StreamError, border bool) (t execution.Terminal, over bool) {
	switch {
	case !failure.Visible:
		// What the client must see, the Edge says in the protocol's own way.
		return e.failed(execution.CodeProviderError, reportOf(failure)), true
	case e.stream.Ended() || border && e.stream.Complete():
		e.linger = true // engines send [DONE] after an error, too
		return e.told(failure), true
	case e.patience == nil:
		e.patience = time.AfterFunc(failedPatience, func() { e.cancel(errRunOver) })
	}
	return t, false
}

func reportOf(failure *openai.StreamError) string {
	return "the provider's stream reported: " + failure.Err.Message
}

// told is the end of a run whose client has the provider's own error: failed, and nothing is left to be said.
func (e *exchange) told(failure *openai.StreamError) execution.Terminal {
	if context.Cause(e.runCtx) != nil {
		return e.failed(execution.CodeProviderError, reportOf(failure)) // cancelled meanwhile
	}
	e.providerDone()
	return e.toldOf(failure)
}

func (e *exchange) toldOf(failure *openai.StreamError) execution.Terminal {
	t := e.terminal(execution.Failed, execution.CodeProviderError, reportOf(failure))
	t.Told = true
	return t
}

// leftOver returns the provider's own error that was passed on, or about to be, when the client left: clients hang up on
// it, often before the run has ended here. nil where there is none.
func (e *exchange) leftOver(code execution.Code) *openai.StreamError {
	if code != execution.CodeClientGone || e.stream == nil || !e.headOut {
		return nil
	}
	if failure := e.stream.ErrorEvent(); failure != nil && failure.Visible {
		return failure
	}
	return nil
}
