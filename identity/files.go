package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"iop/filewatch"
)

// maxPEMFile bounds what is read of a file: 64 authorities with room for comments.
const maxPEMFile = 1 << 20

// How often the files are looked at, and how soon again when one has changed: whoever writes in place or writes three files
// needs a moment, and half a bundle can be a valid one.
const (
	defaultPoll = 10 * time.Second
	settle      = time.Second
)

// FilesConfig names the files of an identity.
type FilesConfig struct {
	// Required.
	ID         ID     // who this process is; the certificate must say the same
	CertFile   string // PEM: the leaf first, then intermediates
	KeyFile    string // PEM: its private key, readable by its owner alone
	BundleFile string // PEM: the authorities to believe, two sets of them during a rotation

	// Optional.
	Poll   time.Duration // between looks at the files; 0 means 10 s
	Logger *slog.Logger  // or nil: nothing is logged
}

// Files is a Source in PEM files. All its methods are for any goroutine.
type Files struct {
	*holder

	// Static.
	config FilesConfig
	logger *slog.Logger
	stop   context.CancelFunc
	done   chan struct{} // closed by run when it ends
	files  *filewatch.Watcher
}

var _ Source = (*Files)(nil)

// OpenFiles reads the files, fails if they are not a valid identity, and from then on looks at their contents every 10
// seconds. A changed set takes effect as a whole, once two looks have found it and if it is valid: key and certificate
// belong together, a peer would accept the certificate, it names the configured ID, and a new certificate ends
// later than the one in force. Otherwise the one in force stays, Status says why, and the log says it once.
func OpenFiles(config FilesConfig) (*Files, error) {
	if err := config.ID.Validate(); err != nil {
		return nil, err
	}
	if config.Poll <= 0 {
		config.Poll = defaultPoll
	}
	f := &Files{holder: newHolder(config.ID), config: config, logger: orDiscard(config.Logger), done: make(chan struct{})}
	var err error
	f.files, err = filewatch.Open(filewatch.Config{
		Files: []filewatch.File{
			{Path: config.CertFile, Max: maxPEMFile}, {Path: config.KeyFile, Max: maxPEMFile, Private: true}, {Path: config.BundleFile, Max: maxPEMFile},
		},
		Take: f.take, Refused: f.refused, Settle: settle,
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() {
		defer close(f.done)
		f.files.Run(ctx, config.Poll)
	}()
	return f, nil
}

func orDiscard(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return logger
}

// Close stops looking at the files, and waits for a look under way. It may be called more than once; the error is nil.
func (f *Files) Close() error {
	if f.shut() {
		f.stop()
	}
	<-f.done
	return nil
}

// Reload reads the files now and takes what they hold at once, as a SIGHUP asks for. The error says why they were refused;
// the identity in force then stays.
func (f *Files) Reload() error {
	err := f.files.Reload()
	if err != nil {
		f.refused(err)
	}
	return err
}

// refused notes, and logs once, why the files as they are now do not take effect.
func (f *Files) refused(err error) {
	if f.fault(err) {
		f.logger.Error("identity: the new files were rejected; the old ones stay in use", "error", err)
	}
}

// take makes a set of files the identity in force, or says why not.
func (f *Files) take(contents [][]byte) error {
	next, err := f.parse(contents[0], contents[1], contents[2])
	if err != nil {
		return err
	}
	if before, err := f.current(); err == nil && sameMaterial(before, next) {
		f.well()
		return nil
	}
	f.install(next)
	status := f.Status()
	f.logger.Info("identity: loaded", "id", f.id, "serial", status.Serial, "not_after", status.NotAfter, "roots", status.Roots)
	return nil
}

func (f *Files) parse(certFile, keyFile, bundleFile []byte) (*material, error) {
	bundle, err := ParseBundle(bundleFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.config.BundleFile, err)
	}
	chain, err := parseCertificates(certFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.config.CertFile, err)
	}
	pair, err := tls.X509KeyPair(certificatePEM(chain[0].Raw), keyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: no private key that matches the certificate", f.config.KeyFile)
	}
	next, err := newMaterial(f.id, chain, pair.PrivateKey, f.inForce(bundle))
	if err != nil {
		return nil, err
	}
	return next, f.checkLater(next)
}

// checkLater refuses a certificate that ends before the one in force does: most likely an old file was put back.
func (f *Files) checkLater(next *material) error {
	before, err := f.current()
	if err != nil || before.certificate.Leaf.Equal(next.certificate.Leaf) || next.notAfter.After(before.notAfter) {
		return nil
	}
	return fmt.Errorf("%s: the certificate expires at %s, not later than the one in use (%s)", f.config.CertFile,
		next.notAfter.UTC().Format(time.RFC3339), before.notAfter.UTC().Format(time.RFC3339))
}

func sameMaterial(a, b *material) bool {
	return a.bundle == b.bundle && slices.EqualFunc(a.certificate.Certificate, b.certificate.Certificate, bytes.Equal)
}

// readFile reads a file of a bounded size. A private one must be closed to everybody but its owner.
func readFile(path string, private bool) ([]byte, error) {
	file := filewatch.File{Path: path, Max: maxPEMFile, Private: private}
	return file.Read()
}
