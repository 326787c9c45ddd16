package tunnel

import "errors"

// What Open can answer. In each case nothing was sent.
var (
	ErrSessionClosed  = errors.New("the session has ended")
	ErrDraining       = errors.New("the session takes no new runs")
	ErrTooManyStreams = errors.New("the session has as many runs as it may")
)
