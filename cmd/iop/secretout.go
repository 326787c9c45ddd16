package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// secretOut is where a new secret goes: to standard output, alone on its line, or to a file.
type secretOut struct {
	path      string
	ifMissing bool
}

func bindSecretOut(cmd *cobra.Command, what string) *secretOut {
	o := &secretOut{}
	cmd.Flags().StringVar(&o.path, "out", "", "write the "+what+" to this file (mode 0600) instead of printing it; an existing file is not overwritten")
	cmd.Flags().BoolVar(&o.ifMissing, "if-missing", false, "with --out: do nothing if the file exists")
	return o
}

// ready reports whether a secret is to be made. It finds out before one is made whether the file can take it.
func (o *secretOut) ready() (bool, error) {
	if o.path == "" {
		if o.ifMissing {
			return false, usageError{errors.New("--if-missing needs --out")}
		}
		return true, nil
	}
	info, err := os.Lstat(o.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, o.writable()
	case err != nil:
		return false, err
	case o.ifMissing && info.Mode().IsRegular() && info.Size() > 0:
		return false, nil
	}
	return false, fmt.Errorf("%s already exists; remove it, or keep it with --if-missing", o.path)
}

// writable reports why no file can be made there, if so: a secret that can't be delivered would have to be revoked. It tries what
// write does.
func (o *secretOut) writable() error {
	temporary, err := os.CreateTemp(filepath.Dir(o.path), ".iop-*")
	if err != nil {
		return fmt.Errorf("--out: can't create a file in %s: %s", filepath.Dir(o.path), pathFault(err))
	}
	return errors.Join(temporary.Close(), os.Remove(temporary.Name()))
}

// write puts the secret into the file: under another name first, so that who waits for the file finds all of it.
func (o *secretOut) write(secret string) error {
	temporary, err := os.CreateTemp(filepath.Dir(o.path), ".iop-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // fails once it bears its final name
	_, err = temporary.WriteString(secret + "\n")
	if err = errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	// A link, unlike a rename, never replaces a file that another process has put there in the meantime.
	return os.Link(temporary.Name(), o.path)
}

// deliver hands over a new secret: JSON, the file, or standard output with a word for a person on standard error. If there is a
// file, answer has to be without it.
func (o *secretOut) deliver(cmd *cobra.Command, asJSON bool, answer any, secret, word string) error {
	if o.path != "" {
		if err := o.write(secret); err != nil {
			return fmt.Errorf("the secret was created but can't be delivered: %w; revoke %s", err, word)
		}
	}
	switch {
	case asJSON:
		return printJSON(cmd.OutOrStdout(), answer)
	case o.path == "":
		fmt.Fprintln(cmd.ErrOrStderr(), word+"; it is shown only once:")
		_, err := fmt.Fprintln(cmd.OutOrStdout(), secret)
		return err
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s, in %s\n", word, o.path)
	return err
}
