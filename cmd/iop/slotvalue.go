package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"iop/lease"
	"iop/state"
)

// valueIn is where a slot's value is read from: never the command line, which other users can see.
type valueIn struct{ path string }

func bindValue(cmd *cobra.Command) *valueIn {
	v := &valueIn{}
	cmd.Flags().StringVar(&v.path, "value-file", "", "file that holds the value; default: standard input")
	return v
}

// read reads the value, without one line break at its end. No error shows any of it.
func (v *valueIn) read(cmd *cobra.Command) (state.Secret, error) {
	if err := forbidCoreDumps(); err != nil {
		return state.Secret{}, fmt.Errorf("core dumps can't be switched off: %w", err)
	}
	in := cmd.InOrStdin()
	if v.path != "" && v.path != "-" {
		file, err := os.Open(v.path)
		if err != nil {
			return state.Secret{}, fmt.Errorf("--value-file: can't read %s: %s", v.path, pathFault(err))
		}
		defer file.Close()
		in = file
	} else if file, ok := in.(*os.File); ok && isTerminal(file) {
		return state.Secret{}, errors.New("give the value with --value-file or pipe it in; a terminal would show it")
	}
	const most = lease.MaxCredentialLength
	data, err := io.ReadAll(io.LimitReader(in, most+3))
	if err != nil {
		return state.Secret{}, fmt.Errorf("the value can't be read: %s", pathFault(err))
	}
	text, broken := strings.CutSuffix(string(data), "\n")
	clear(data)
	if broken {
		text = strings.TrimSuffix(text, "\r")
	}
	switch {
	case text == "":
		return state.Secret{}, errors.New("the value is empty: it is read from --value-file or standard input")
	case len(text) > most:
		return state.Secret{}, fmt.Errorf("the value is longer than %d bytes", most)
	}
	return state.NewSecret(text), nil
}

// masterKeySettings say where the master keys are, for what seals or opens values without an Edge. The prefix is the
// Edge's.
type masterKeySettings struct {
	File string `env:"MASTER_KEY_FILE" help:"file with the master keys, needed if no Edge is running" example:"/etc/iop/master-key"`
}

func (o *operator) bindMasterKeys(cmd *cobra.Command) {
	o.masterBound = bindSettings(cmd, edgePrefix, &o.master, nil)
}

// tellMasterKeys tells a store that this command has opened the master keys, if their file is known.
func (o *operator) tellMasterKeys(store *state.Store) error {
	if o.master.File == "" {
		return nil
	}
	if err := readMasterKeys(store, o.master.File); err != nil {
		return o.masterBound.bareFault("MASTER_KEY_FILE", oneLine(err))
	}
	return nil
}
