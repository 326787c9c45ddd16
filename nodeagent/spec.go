package nodeagent

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"iop/execution"
)

// Limits of a ProviderSpec, and why: an id stands in every OPEN and in metrics; a capacity beyond a session's
// streams is a typing error; models named by hand are few.
const (
	maxProviderID = 64
	maxCapacity   = 4096
	maxModels     = 1024
	maxModelName  = 256
	maxSpecLength = 64 << 10
)

// ProviderSpec is one provider as the operator wrote it:
//
//	id[:adapter]=URL[,capacity=N][,models=a|b][,key-file=PATH][,slots=a|b*][,ca=PATH]
//
// For example `gpu0:vllm=http://127.0.0.1:8000,capacity=64`.
type ProviderSpec struct {
	// ID names the provider on this Node: letters, digits, '.', '_' and '-', at most 64 bytes. Required.
	ID execution.ProviderID
	// Engine is what stands at URL, or empty: then the Node asks.
	Engine Engine
	// URL is http or https, with a host and perhaps a base path, without user, query and fragment. A trailing "/v1" is
	// dropped: operations carry their own. Required.
	URL string
	// Capacity is how many runs may be under way at once; 0 is what the provider tells, or else the engine's default.
	Capacity int
	// Models, if not empty, are the models offered, whatever the provider lists.
	Models []string
	// KeyFile, if not empty, is a file with the API key that this provider wants. The key itself is never part of a
	// specification, so that neither a process list nor a configuration shows it.
	KeyFile string
	// Slots, if not empty, are globs ('*' and '?') of the slots whose leases this provider accepts: in managed mode each
	// run brings its own credential, sealed, and a run without one is refused. It excludes KeyFile and needs Models.
	Slots []string
	// CAFile, if not empty, is a PEM file with the authorities to trust for an https URL, instead of the system's.
	CAFile string
}

// ParseSpec reads a ProviderSpec. An error names the field and the fault, and never a value that might be secret.
func ParseSpec(s string) (ProviderSpec, error) {
	spec, err := parseSpec(s)
	if err != nil {
		return ProviderSpec{}, fmt.Errorf("provider %s: %w", specName(s), err)
	}
	return spec, nil
}

func parseSpec(s string) (ProviderSpec, error) {
	if len(s) > maxSpecLength {
		return ProviderSpec{}, fmt.Errorf("longer than %d bytes", maxSpecLength)
	}
	name, rest, ok := strings.Cut(s, "=")
	if !ok || strings.Contains(name, "/") {
		return ProviderSpec{}, errors.New("no id before the URL, want id[:adapter]=URL, e.g. ollama=http://127.0.0.1:11434")
	}
	id, engine, hasEngine := strings.Cut(name, ":")
	spec := ProviderSpec{ID: execution.ProviderID(id), Engine: Engine(engine)}
	if hasEngine && engine == "" {
		return ProviderSpec{}, fmt.Errorf("adapter is empty, want one of %s", engineNames())
	}
	address, options, _ := strings.Cut(rest, ",")
	base, err := parseBase(address)
	if err != nil {
		return ProviderSpec{}, err
	}
	spec.URL = base.String()
	if err := spec.parseOptions(options); err != nil {
		return ProviderSpec{}, err
	}
	return spec, spec.validate()
}

// specName is the part of s that may stand in an error: the id, if it is one.
func specName(s string) string {
	name, _, _ := strings.Cut(s, "=")
	id, _, _ := strings.Cut(name, ":")
	if validateID(id) != nil {
		return "SPEC"
	}
	return strconv.Quote(id)
}

func (p *ProviderSpec) parseOptions(options string) error {
	var seen []string
	for options != "" {
		var option string
		option, options, _ = strings.Cut(options, ",")
		key, value, ok := strings.Cut(option, "=")
		if !ok || value == "" {
			return errors.New("an option has no value, want ,capacity=N ,models=a|b ,key-file=PATH ,slots=a|b* or ,ca=PATH")
		}
		if slices.Contains(seen, key) {
			return fmt.Errorf("%s is given twice", key)
		}
		seen = append(seen, key)
		if err := p.setOption(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (p *ProviderSpec) setOption(key, value string) error {
	switch key {
	case "capacity":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxCapacity {
			return fmt.Errorf("capacity must be a number from 1 to %d", maxCapacity)
		}
		p.Capacity = n
	case "models":
		p.Models = strings.Split(value, "|")
	case "key-file":
		p.KeyFile = value
	case "slots":
		p.Slots = strings.Split(value, "|")
	case "ca":
		p.CAFile = value
	case "key", "api-key", "token", "secret":
		return errors.New("a key can't be given on the command line; give the file that holds it: ,key-file=PATH")
	default:
		return errors.New("an option is unknown, want capacity, models, key-file, slots or ca")
	}
	return nil
}

// validate checks what ParseSpec and a program may both get wrong.
func (p *ProviderSpec) validate() error {
	if err := validateID(string(p.ID)); err != nil {
		return err
	}
	if p.Engine != "" && !p.Engine.valid() {
		return fmt.Errorf("adapter is unknown, want one of %s", engineNames())
	}
	if p.Capacity < 0 || p.Capacity > maxCapacity {
		return fmt.Errorf("capacity must be a number from 1 to %d", maxCapacity)
	}
	if len(p.Models) > maxModels {
		return fmt.Errorf("models names more than %d models", maxModels)
	}
	for i, m := range p.Models {
		if !validModel(m) {
			return fmt.Errorf("models holds an empty, too long or unprintable name, at position %d", i+1)
		}
		if strings.ContainsAny(m, "|,") {
			return fmt.Errorf("models holds a name with '|' or ',', at position %d", i+1)
		}
		if slices.Contains(p.Models[:i], m) {
			return fmt.Errorf("models names %q twice", m)
		}
	}
	if strings.ContainsAny(p.KeyFile, ",\x00\n\r") {
		return errors.New("key-file must be a path without comma and control characters")
	}
	return p.validateHop()
}

func validateID(id string) error {
	if id == "" || len(id) > maxProviderID {
		return fmt.Errorf("id must have 1 to %d characters", maxProviderID)
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return errors.New("id may hold letters, digits, '.', '_' and '-' only")
		}
	}
	return nil
}

// validModel reports whether a model's name may be offered: what can't stand in a log line or a header can't.
func validModel(m string) bool {
	if m == "" || len(m) > maxModelName || strings.TrimSpace(m) != m {
		return false
	}
	for _, r := range m {
		if !unicode.IsPrint(r) || r == '\uFFFD' {
			return false
		}
	}
	return true
}

// parseBase reads a provider's base URL and brings it into the one form that String and the transport use. Errors
// never quote the URL: it may hold a password.
func parseBase(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("URL can't be read, want e.g. http://127.0.0.1:8000")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("URL must begin with http:// or https://")
	case u.User != nil:
		return nil, errors.New("URL must not hold a user or password; give a key with ,key-file=PATH")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "?"):
		return nil, errors.New("URL must not have a query")
	case u.Fragment != "" || strings.Contains(s, "#"):
		return nil, errors.New("URL must not have a fragment")
	case u.Hostname() == "":
		return nil, errors.New("URL has no host")
	case strings.ContainsAny(u.Hostname(), " ,=|\\") || strings.ContainsFunc(u.Host, isControl) || !utf8.ValidString(u.Host):
		return nil, errors.New("URL has a malformed host")
	}
	if err := checkPort(u); err != nil {
		return nil, err
	}
	path, err := cleanBasePath(u)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host), Path: path}, nil
}

func checkPort(u *url.URL) error {
	port := u.Port()
	if port == "" {
		if strings.HasSuffix(u.Host, ":") {
			return errors.New("URL has an empty port")
		}
		return nil
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return errors.New("URL has a port outside 1 to 65535")
	}
	return nil
}

// cleanBasePath accepts plain path segments only: whatever could be read differently by two parsers (dots, escapes,
// empty segments, backslashes) has no place in a configured base.
func cleanBasePath(u *url.URL) (string, error) {
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	for strings.HasSuffix(path, "/v1") { // all of them, so that the result reads as itself
		path = strings.TrimSuffix(path, "/v1")
	}
	for i := range len(path) {
		c := path[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("/-._~:@+", c) >= 0:
		default:
			return "", errors.New("URL has a base path with an escape or a special character")
		}
	}
	for segment := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if path != "" && (segment == "" || segment == "." || segment == "..") {
			return "", errors.New("URL has a base path with an empty or dot segment")
		}
	}
	return path, nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// String returns the specification in the form that ParseSpec reads.
func (p ProviderSpec) String() string {
	var b strings.Builder
	b.WriteString(string(p.ID))
	if p.Engine != "" {
		b.WriteString(":" + string(p.Engine))
	}
	b.WriteString("=" + p.URL)
	if p.Capacity > 0 {
		b.WriteString(",capacity=" + strconv.Itoa(p.Capacity))
	}
	if len(p.Models) > 0 {
		b.WriteString(",models=" + strings.Join(p.Models, "|"))
	}
	if p.KeyFile != "" {
		b.WriteString(",key-file=" + p.KeyFile)
	}
	if len(p.Slots) > 0 {
		b.WriteString(",slots=" + strings.Join(p.Slots, "|"))
	}
	if p.CAFile != "" {
		b.WriteString(",ca=" + p.CAFile)
	}
	return b.String()
}
