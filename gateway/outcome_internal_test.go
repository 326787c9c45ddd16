package gateway

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"iop/execution"
	"iop/gateway/credential"
	"iop/tunnel"
)

// TestEachCodeIsTold: what a client is told of each end of a run. A code that is not in the table is a new one, for which
// somebody has to decide.
func TestEachCodeIsTold(t *testing.T) {
	type told struct {
		status int
		code   string
	}
	wants := map[execution.Code]told{
		execution.CodeCapacity:            {503, "overloaded"},
		execution.CodeDraining:            {503, "no_node_available"},
		execution.CodeUnknownProvider:     {503, "no_node_available"},
		execution.CodeUnsupported:         {400, "invalid_request_error"},
		execution.CodeBadRequest:          {500, "internal_error"},
		execution.CodeProviderUnreachable: {502, "provider_error"},
		execution.CodeProviderError:       {502, "provider_error"},
		execution.CodeProviderTimeout:     {504, "provider_timeout"},
		execution.CodeProviderTruncated:   {502, "provider_error"},
		execution.CodeProviderRedirect:    {502, "provider_error"},
		execution.CodeResponseTooLarge:    {502, "provider_error"},
		execution.CodeSessionLost:         {502, "node_lost"},
		execution.CodeSessionSuperseded:   {502, "node_lost"},
		execution.CodeLostByNode:          {502, "node_lost"},
		execution.CodeFlowControl:         {502, "node_lost"},
		execution.CodeProtocol:            {502, "node_lost"},
		execution.CodeDeadline:            {504, "provider_timeout"},
		execution.CodeClientGone:          {499, "run_cancelled"},
		execution.CodeCancelledByCaller:   {499, "run_cancelled"},
		execution.CodeCancelledByOperator: {499, "run_cancelled"},
		execution.CodeDrainDeadline:       {503, "interrupted"},
		execution.CodeShutdown:            {503, "interrupted"},
		execution.CodeCancelTimeout:       {502, "node_lost"},
		execution.CodeCredentialRejected:  {502, "credential_rejected"},
		execution.CodeInternal:            {500, "internal_error"},
		execution.CodeNoNodeAvailable:     {503, "no_node_available"},
	}
	for code := execution.CodeNone + 1; !strings.HasPrefix(code.String(), "unknown_") || code == execution.CodeUnknownProvider; code++ {
		got := problemOf(execution.Terminal{Code: code})
		if want, known := wants[code]; !known || (told{got.Status, got.Code}) != want {
			t.Errorf("%s is told as %d %s, want %v", code, got.Status, got.Code, wants[code])
		}
	}
}

// TestNoCredentialForWantOfState: a state that can't be asked has rejected no credential.
func TestNoCredentialForWantOfState(t *testing.T) {
	for _, reason := range credential.Reasons() {
		want := "credential_rejected"
		if reason == credential.ReasonState || reason == credential.ReasonAudit {
			want = "state_unavailable"
		}
		err := fmt.Errorf("open: %w", &credential.RefusedError{Reason: reason})
		if e := refusalOf(err); e.Code != want || e.NoRetry != (want == "credential_rejected") {
			t.Errorf("%s is told as %+v", reason, e)
		}
	}
	for _, err := range []error{tunnel.ErrNoRecipient, errors.New("another")} {
		if e := refusalOf(err); e.Code != "credential_rejected" || !e.NoRetry {
			t.Errorf("%v is told as %+v", err, e)
		}
	}
}
