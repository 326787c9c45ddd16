package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"iop/identity"
	"iop/state"
)

// identityFiles is where a process in managed mode finds who it is: in PEM files, or from an agent.
type identityFiles struct {
	cert, key, bundle string
	socket            string // of the SPIFFE Workload API; instead of the files

	id    identity.ID             // whom to ask the agent for
	check func(identity.ID) error // whether the one in the certificate file is right; nil: it is
}

// open opens the identity. The caller closes what it gets.
func (f *identityFiles) open(ctx context.Context, role identity.Role, logger *slog.Logger) (identity.Source, error) {
	if f.socket != "" {
		source, err := identity.OpenWorkload(ctx, identity.WorkloadConfig{ID: f.id, Address: f.socket, Logger: logger})
		if err != nil {
			return nil, oneLine(err)
		}
		return source, nil
	}
	id, err := f.whose()
	switch {
	case err != nil:
		return nil, oneLine(err)
	case id.Role() != role:
		return nil, fmt.Errorf("%s is the certificate of %s; its role must be %s", f.cert, id, role)
	case f.check != nil:
		if err := f.check(id); err != nil {
			return nil, err
		}
	}
	source, err := identity.OpenFiles(identity.FilesConfig{ID: id, CertFile: f.cert, KeyFile: f.key, BundleFile: f.bundle, Logger: logger})
	if err != nil {
		return nil, oneLine(err)
	}
	return source, nil
}

// whose returns the ID in the certificate file, if peers would accept it.
func (f *identityFiles) whose() (identity.ID, error) {
	authorities, err := readPEM(f.bundle)
	if err != nil {
		return "", err
	}
	bundle, err := identity.ParseBundle(authorities)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.bundle, err)
	}
	certificate, err := readPEM(f.cert)
	if err != nil {
		return "", err
	}
	id, err := identity.VerifyFile(certificate, bundle, time.Now())
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.cert, err)
	}
	return id, nil
}

// readPEM reads a file of certificates, with a bound: a wrong path must not read a disk into memory.
func readPEM(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("can't read %s: %s", path, pathFault(err))
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxCertificateInput+1))
	if err != nil {
		return nil, fmt.Errorf("can't read %s: %s", path, pathFault(err))
	}
	if len(data) > maxCertificateInput {
		return nil, fmt.Errorf("%s is too large", path)
	}
	return data, nil
}

// oneLine is err in a line: a fault of a setting has one.
func oneLine(err error) error { return errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")) }

// reloadIdentity reports whether the identity lies in files that may be read again, and reads them.
func reloadIdentity(source identity.Source) (reloads bool, err error) {
	files, ok := source.(*identity.Files)
	if !ok {
		return false, nil
	}
	return true, files.Reload()
}

// readMasterKeys tells the store the master keys of a file.
func readMasterKeys(store *state.Store, path string) error {
	keys, err := state.ReadMasterKeys(path)
	if err != nil {
		return err
	}
	return store.UseMasterKey(keys[0], keys[1:]...)
}

// errHTTP2Debug says why a process does not start.
var errHTTP2Debug = usageError{errors.New("GODEBUG must not have http2debug: net/http would print every header to standard error, keys and tokens included")}

// forbidHTTP2Debug refuses a setting of the environment by which net/http prints headers. Every command sends or takes keys,
// so none starts with it.
func forbidHTTP2Debug() error {
	if strings.Contains(os.Getenv("GODEBUG"), "http2debug") {
		return errHTTP2Debug
	}
	return nil
}

// guardSecrets keeps the credentials that the process will hold out of core dumps.
func guardSecrets() error {
	if err := forbidCoreDumps(); err != nil {
		return fmt.Errorf("core dumps can't be switched off: %w", err)
	}
	return nil
}

// onHangup calls f at each SIGHUP, until what it returns is called.
func onHangup(f func()) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hangups {
			f()
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		<-done
	}
}
