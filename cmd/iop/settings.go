package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/spf13/cobra"
)

// settings binds the fields of a struct to environment variables and to flags of the same names: LISTEN under the
// prefix IOP_EDGE_ is IOP_EDGE_LISTEN and --listen. What the struct holds beforehand is the default, a variable beats
// it, a flag beats the variable, and all three go through the same parser. Struct tags say the rest:
//
//	env:"NAME"       the name; a field without it is left alone
//	flag:"name"      the flag, where it is not the name in lower case with dashes
//	help:"..."       the flag's help
//	example:"..."    a right value, shown when a wrong one was given
//	more:"..."       what docs/configuration.md says; the help is in docs/commands.md
//	absent:"..."     what the reference says holds where nothing is given, for a default that is none of the struct's
//	min:"..." max:"..."  the least and greatest value, written as a value is; every number and duration has both
//	secret:"true"    NAME_FILE and --name-file name a file that holds the value, and the value is never shown
type settings struct {
	prefix string
	target any // pointer to the struct
	fields []*setting
}

// setting is one field.
type setting struct {
	goName  string
	name    string // without the prefix
	flag    string
	kind    reflect.Type
	example string
	// least and most bound a number or a duration; empty for other kinds.
	least, most string
	secret      bool
	// separator joins the values of a repeated flag as the variable would hold them; empty: the flag stands once.
	separator string

	text flagText // of the flag
	file flagText // of the flag for the file of a secret
}

// specList is a list in which commas mean something else: white space separates its items in a variable.
type specList []string

// UnmarshalText splits at white space.
func (l *specList) UnmarshalText(text []byte) error {
	*l = strings.Fields(string(text))
	return nil
}

// bindSettings adds the flags of target's fields to cmd. help overrides the tags, by name, for structs that have none.
func bindSettings(cmd *cobra.Command, prefix string, target any, help map[string]string) *settings {
	s := &settings{prefix: prefix, target: target}
	s.bind(cmd, reflect.ValueOf(target).Elem(), help)
	return s
}

// bind adds the fields of a struct, and of those embedded in it.
func (s *settings) bind(cmd *cobra.Command, value reflect.Value, help map[string]string) {
	for i := range value.NumField() {
		field := value.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("env"), ",")
		if name == "" {
			if field.Anonymous {
				s.bind(cmd, value.Field(i), help)
			}
			continue
		}
		f := newSetting(field, name)
		usage := field.Tag.Get("help")
		if h, ok := help[name]; ok {
			usage = h
		}
		f.addFlags(cmd, usage, s.prefix+name, shown(value.Field(i)))
		annotate(cmd, f, s.prefix, field.Tag)
		s.fields = append(s.fields, f)
	}
}

func newSetting(field reflect.StructField, name string) *setting {
	f := &setting{
		goName:    field.Name,
		name:      name,
		flag:      field.Tag.Get("flag"),
		kind:      field.Type,
		example:   field.Tag.Get("example"),
		least:     field.Tag.Get("min"),
		most:      field.Tag.Get("max"),
		secret:    field.Tag.Get("secret") == "true",
		separator: separatorOf(field),
	}
	switch kindName(f.kind) {
	case "duration", "days", "int", "number":
		if !(magnitude(f.kind, f.least) <= magnitude(f.kind, f.most)) || f.least == "" || f.most == "" {
			panic("settings: " + name + " has no bounds") // a programmer's fault, which every run of the binary shows
		}
	}
	if f.flag == "" {
		f.flag = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	}
	return f
}

func separatorOf(field reflect.StructField) string {
	switch {
	case field.Type == reflect.TypeFor[specList]():
		return " "
	case field.Type.Kind() == reflect.Slice:
		return ","
	}
	return ""
}

func (f *setting) addFlags(cmd *cobra.Command, usage, variable, byDefault string) {
	kind := kindName(f.kind)
	if kind == "days" {
		kind = "duration"
	}
	f.text = flagText{kind: kind, byDefault: byDefault, separator: f.separator}
	if f.secret {
		f.text.byDefault = ""
		f.file.kind = "file"
		cmd.Flags().Var(&f.file, f.flag+"-file", fmt.Sprintf("file that holds the value of --%s (%s_FILE)", f.flag, variable))
		usage += "; other users of this machine can see command lines, so prefer the file or the variable"
	}
	flag := cmd.Flags().VarPF(&f.text, f.flag, "", fmt.Sprintf("%s (%s)", usage, variable))
	if f.kind.Kind() == reflect.Bool {
		flag.NoOptDefVal = "true"
	}
}

// Annotations of a setting's flag, for the reference.
const (
	helpAnnotation   = "iop_help"
	moreAnnotation   = "iop_more"
	absentAnnotation = "iop_absent"
	// variableAnnotation has the names of the setting's variables.
	variableAnnotation = "iop_variable"
)

// annotate notes at the flag what only the reference shows.
func annotate(cmd *cobra.Command, f *setting, prefix string, tag reflect.StructTag) {
	annotations := map[string][]string{helpAnnotation: {tag.Get("help")}, variableAnnotation: {prefix + f.name}}
	if f.secret {
		annotations[variableAnnotation] = append(annotations[variableAnnotation], prefix+f.name+"_FILE")
	}
	for name, text := range map[string]string{moreAnnotation: tag.Get("more"), absentAnnotation: tag.Get("absent")} {
		if text != "" {
			annotations[name] = []string{text}
		}
	}
	cmd.Flags().Lookup(f.flag).Annotations = annotations
}

// flagText is a flag that keeps what it was given; load parses it.
type flagText struct {
	given     bool
	text      string
	kind      string
	byDefault string
	separator string
}

// String returns what help shows as the default.
func (t *flagText) String() string {
	if t.given {
		return t.text
	}
	return t.byDefault
}

// Type returns what help shows as the flag's argument.
func (t *flagText) Type() string { return t.kind }

// Set keeps the text, behind what a repeated flag was given before.
func (t *flagText) Set(text string) error {
	if t.given && t.separator != "" {
		text = t.text + t.separator + text
	}
	t.given, t.text = true, text
	return nil
}

// load fills the struct. Its error is one line that names the setting, the fault and an example, and never the value.
func (s *settings) load() error {
	environment := map[string]string{}
	for _, f := range s.fields {
		value, err := s.resolve(f)
		if err != nil {
			return err
		}
		if value != "" {
			environment[s.prefix+f.name] = value
		}
	}
	err := env.ParseWithOptions(s.target, env.Options{Environment: environment, Prefix: s.prefix})
	if err := s.explain(err); err != nil {
		return err
	}
	return s.checkBounds()
}

// checkBounds holds each number and duration against its bounds: a typing error must not become a value that wraps where it
// is counted in milliseconds, or a time that is never over.
func (s *settings) checkBounds() error {
	for _, f := range s.fields {
		if f.least == "" && f.most == "" {
			continue
		}
		value := magnitude(f.kind, fmt.Sprint(reflect.ValueOf(s.target).Elem().FieldByName(f.goName).Interface()))
		if !(value >= magnitude(f.kind, f.least) && value <= magnitude(f.kind, f.most)) { // NaN is in no range
			return s.fault(f.name, "must be from %s to %s", f.least, f.most)
		}
	}
	return nil
}

// magnitude is a number, or a duration in nanoseconds, for comparison. What is none is NaN.
func magnitude(kind reflect.Type, text string) float64 {
	switch kindName(kind) {
	case "duration", "days":
		if d, err := parseSpan(cmp.Or(text, "0s")); err == nil {
			return float64(d)
		}
	case "int", "number":
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return n
		}
	}
	return math.NaN()
}

// secretSource returns what gives a secret's value whenever it is needed: where it came from a file, the file is read
// again each time, so that it may be exchanged under a running process.
func (s *settings) secretSource(name, loaded string) func() (string, error) {
	f := s.field(name)
	file := f.file.text
	if !f.text.given && !f.file.given {
		file = os.Getenv(s.prefix + name + "_FILE")
	}
	if file == "" || f.text.given {
		return func() (string, error) { return loaded, nil }
	}
	return func() (string, error) { return s.readSecret(f, file) }
}

// resolve returns the text that counts for a field, or the empty string for its default.
func (s *settings) resolve(f *setting) (string, error) {
	value, file := f.text.text, f.file.text
	if !f.text.given && !f.file.given {
		value = os.Getenv(s.prefix + f.name)
		if f.secret {
			file = os.Getenv(s.prefix + f.name + "_FILE")
		}
	}
	if file == "" {
		return value, nil
	}
	if value != "" {
		return "", s.fault(f.name, "is given as a value and as a file; give only one")
	}
	return s.readSecret(f, file)
}

// maxSecretFile bounds what is read of a secret's file: a wrong path must not read a disk into memory.
const maxSecretFile = 64 << 10

func (s *settings) readSecret(f *setting, path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil && (info.IsDir() || info.Size() > maxSecretFile) {
		err = errors.New("it is a directory or too large")
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return "", s.faultOf(f, "_FILE", "-file", fmt.Sprintf("can't read %s: %s", path, pathFault(err)))
	}
	value := strings.TrimSpace(string(data))
	if value == "" {
		return "", s.faultOf(f, "_FILE", "-file", fmt.Sprintf("%s is empty", path))
	}
	return value, nil
}

// explain turns the parser's error, which shows the value, into ours, which doesn't.
func (s *settings) explain(err error) error {
	if err == nil {
		return nil
	}
	parse, ok := errors.AsType[env.ParseError](err)
	if !ok {
		return fmt.Errorf("settings: %T", err)
	}
	for _, f := range s.fields {
		if f.goName == parse.Name {
			if f.least != "" {
				return s.fault(f.name, "is not %s, from %s to %s", kindSentence(f.kind), f.least, f.most)
			}
			return s.fault(f.name, "is not %s", kindSentence(f.kind))
		}
	}
	return fmt.Errorf("settings: can't parse field %s", parse.Name)
}

// fault is an error of wrong use about the setting with that name.
func (s *settings) fault(name, format string, args ...any) error {
	return s.faultOf(s.field(name), "", "", fmt.Sprintf(format, args...))
}

// bareFault is an error of wrong use that says what is wrong with what the setting names, without an example.
func (s *settings) bareFault(name string, err error) error {
	f := s.field(name)
	return usageError{fmt.Errorf("%s%s (--%s): %w", s.prefix, f.name, f.flag, err)}
}

// field returns the setting with that name, which must exist.
func (s *settings) field(name string) *setting {
	i := slices.IndexFunc(s.fields, func(f *setting) bool { return f.name == name })
	return s.fields[i]
}

func (s *settings) faultOf(f *setting, suffix, flagSuffix, fault string) error {
	example := ""
	if f.example != "" && suffix == "" {
		example = fmt.Sprintf("; for example %s%s=%s", s.prefix, f.name, f.example)
	}
	return usageError{fmt.Errorf("%s%s%s (--%s%s) %s%s", s.prefix, f.name, suffix, f.flag, flagSuffix, fault, example)}
}

// given reports whether a flag or a variable sets the field.
func (s *settings) given(name string) bool {
	f := s.field(name)
	return f.text.given || f.file.given || os.Getenv(s.prefix+name) != "" || f.secret && os.Getenv(s.prefix+name+"_FILE") != ""
}

func kindName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t == reflect.TypeFor[span]():
		return "days"
	case t == reflect.TypeFor[specList]():
		return "spec"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int64:
		return "int"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list"
	}
	return "string"
}

func kindSentence(t reflect.Type) string {
	switch kindName(t) {
	case "duration":
		return "a duration with a unit, such as 250ms, 30s or 5m"
	case "days":
		return "a duration with a unit, such as 36h or 90d"
	case "bool":
		return "true or false"
	case "int":
		return "a whole number"
	case "number":
		return "a number"
	}
	return "valid"
}

// shown is how help writes a default.
func shown(v reflect.Value) string {
	if v.IsZero() {
		return ""
	}
	switch value := v.Interface().(type) {
	case []string:
		return strings.Join(value, ",")
	case specList:
		return strings.Join(value, " ")
	case float64:
		return strconv.FormatFloat(value, 'g', -1, 64)
	}
	return fmt.Sprint(v.Interface())
}
