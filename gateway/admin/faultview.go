package admin

import (
	"errors"

	"iop/gateway/route"
)

// ErrorBody is what stands in the member "error" of an answer that is no success.
type ErrorBody struct {
	Message string      `json:"message"`
	Type    string      `json:"type"`
	Param   *string     `json:"param"`
	Code    string      `json:"code"`
	Faults  []FileFault `json:"faults,omitempty"` // of a file of routes, with the code invalid_config
}

func faultsOf(err *route.ConfigError) []FileFault {
	faults := []FileFault{}
	for _, f := range err.Faults {
		faults = append(faults, FileFault{File: f.File, Line: f.Line, Column: f.Column, Path: f.Path, Message: f.Message})
	}
	return faults
}

// FaultOf is why a file was refused, without the time.
func FaultOf(err error) ConfigFault {
	fault := ConfigFault{Message: err.Error(), Faults: []FileFault{}}
	if bad, ok := errors.AsType[*route.ConfigError](err); ok {
		fault.Faults = faultsOf(bad)
	}
	return fault
}
