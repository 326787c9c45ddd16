// Command iop is the whole of IOP in one binary: the Edge, the Node, the simulator, the operator's commands.
//
// This room turns a command line and an environment into the configuration of a package below, runs it, and prints
// what a person or a script reads. Each command has a file of its own. What a command does lives in the package that
// it serves, never here.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"iop/gateway"
	"iop/state"
)

// Exit statuses, a promise to scripts.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is an error of wrong use: it ends the process with exitUsage.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errTold ends the process with exitFailed where the command has written on standard error itself what is wrong.
var errTold = errors.New("told already")

func main() {
	standard := gateway.NewLogWriter(os.Stderr) // nothing that serves may wait for who reads the log
	log.SetOutput(withoutAnswers{standard})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal ends the command in good order; from then on a signal has its usual effect, at once.
	context.AfterFunc(ctx, stop)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	standard.Close()
	os.Exit(status)
}

// withoutAnswers is where the standard logger writes. All of ours log through slog; but net/http's client, which takes
// no logger, puts bytes of a provider's answer into a line here, and those have no place in a log.
type withoutAnswers struct{ out io.Writer }

func (w withoutAnswers) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("Unsolicited response")) {
		return len(line), nil
	}
	return w.out.Write(line)
}

// run executes one command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := forbidHTTP2Debug()
	if err == nil {
		err = root.ExecuteContext(state.WithActor(ctx, commandActor()))
	}
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errTold) {
		return exitFailed
	}
	last := gateway.NewLogWriter(stderr)
	fmt.Fprintln(last, "iop:", err)
	last.Close()
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}
