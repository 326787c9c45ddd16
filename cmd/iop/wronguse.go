package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"iop/gateway/spelling"
)

// flagSynonyms are flags by the names that other programs give them, the likeliest first.
var flagSynonyms = map[string][]string{
	"token": {"join-token-file", "admin-token-file"}, "url": {"edge", "admin-url"}, "server": {"edge", "admin-url"}, "endpoint": {"edge", "admin-url"},
	"port": {"listen"}, "address": {"listen"}, "addr": {"listen"}, "bind": {"listen"}, "host": {"listen", "edge"},
	"cert": {"tls-cert"}, "key": {"tls-key"}, "cacert": {"ca"}, "database": {"state"}, "db": {"state"}, "data": {"state"}, "upstream": {"provider"}, "backend": {"provider"},
	"verbose": {"log"}, "debug": {"log"}, "loglevel": {"log"}, "file": {"out"}, "output": {"out"}, "expiry": {"expires", "ttl"},
}

// unknownFlag adds to an error about a flag that a command does not have which one is meant, or which command has it.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	name := unknown.GetSpecifiedName()
	if group := unknown.GetSpecifiedShortnames(); len(group) > 1 {
		name = group // a flag with one dash too few
		if whole, _, _ := strings.Cut(group, "="); cmd.Flags().Lookup(whole) != nil {
			return fmt.Errorf("unknown flag: -%s; did you mean --%s?", whole, whole)
		}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if meant := meantFlag(name, names); meant != "" {
		return fmt.Errorf("%w; did you mean --%s?", unknown, meant)
	}
	if others := commandsWith(cmd, name); len(others) > 0 {
		return fmt.Errorf("%w; it is a flag of %s", unknown, strings.Join(others, ", "))
	}
	return unknown
}

// meantFlag is the one of names that is meant by another: misspelt, or another program's, or a part of it. It may be none.
func meantFlag(typed string, names []string) string {
	if name := spelling.Nearest(typed, names); name != "" {
		return name
	}
	for _, name := range flagSynonyms[typed] {
		if slices.Contains(names, name) {
			return name
		}
	}
	for _, name := range names {
		if len(typed) > 2 && slices.Contains(strings.Split(name, "-"), typed) {
			return name
		}
	}
	return ""
}

// maxOthers is how many commands are named that have a flag.
const maxOthers = 3

// commandsWith are the commands that have a flag, those below cmd first.
func commandsWith(cmd *cobra.Command, flag string) (paths []string) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if !c.Hidden && !isDoctors(c) && c.LocalFlags().Lookup(flag) != nil && !slices.Contains(paths, c.CommandPath()) {
			paths = append(paths, c.CommandPath())
		}
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(cmd)
	visit(cmd.Root())
	return paths[:min(len(paths), maxOthers)]
}

// serving are the commands that run until a signal: they warn of every variable that nobody reads, in their logs.
var serving = []string{"edge", "node", "dev", "sim"}

// foreignVariables are not ours although they begin with IOP_: what the documents keep in a shell, and what Kubernetes sets in each
// container for services whose names begin so.
var foreignVariables = regexp.MustCompile(`^IOP_KEY$|^IOP_.*(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// stray is an environment variable that no setting reads.
type stray struct {
	name string
	near string // the setting that is meant, or empty
}

func (s stray) String() string {
	if s.near != "" {
		return fmt.Sprintf("%s is not a setting; did you mean %s?", s.name, s.near)
	}
	return s.name + " is not a setting of this version and is ignored"
}

// strays are the variables IOP_... of an environment that no setting of any command reads.
func strays(root *cobra.Command, environ []string) (list []stray) {
	known := variables(root)
	names := slices.Sorted(maps.Keys(known))
	given := map[string]bool{}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		upper := strings.ToUpper(name)
		if runtime.GOOS == "windows" {
			name = upper // as it is read there
		}
		if strings.HasPrefix(upper, "IOP_") && !known[name] && !foreignVariables.MatchString(upper) {
			given[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		list = append(list, stray{name, nearVariable(name, names)})
	}
	return list
}

// variables are the settings of all commands.
func variables(root *cobra.Command) map[string]bool {
	known := map[string]bool{}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			for _, name := range f.Annotations[variableAnnotation] {
				known[name] = true
			}
		})
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(root)
	return known
}

// maxVariableSlips bounds the mistakes in a variable: half of its name is its prefix.
const maxVariableSlips = 2

// nearVariable is the setting that a variable is meant to be: misspelt, or without the name of its command.
func nearVariable(name string, known []string) (best string) {
	least := maxVariableSlips + 1
	upper := strings.ToUpper(name)
	for _, k := range known {
		if d := spelling.Distance(upper, k, least); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return best
	}
	for _, prefix := range []string{edgePrefix, nodePrefix, "IOP_ADMIN_", "IOP_DEV_", "IOP_SIM_", "IOP_BENCH_"} {
		if whole := prefix + strings.TrimPrefix(upper, "IOP_"); slices.Contains(known, whole) {
			return whole
		}
	}
	return ""
}

// warnStrays says which variables are ignored: all of them, or those that are nearly a setting.
func warnStrays(cmd *cobra.Command, w io.Writer, all bool) {
	for _, s := range strays(cmd.Root(), os.Environ()) {
		if all || s.near != "" {
			fmt.Fprintf(w, "iop: %s\n", s)
		}
	}
}

// isDoctors reports whether a command is one of "iop doctor", which have the flags of others and warn by themselves.
func isDoctors(cmd *cobra.Command) bool { return cmd.HasParent() && cmd.Parent().Name() == "doctor" }

// warnBefore warns in front of a command that does not serve.
func warnBefore(cmd *cobra.Command, _ []string) {
	if name := cmd.Name(); slices.Contains(serving, name) || strings.HasPrefix(name, "__") || isDoctors(cmd) {
		return
	}
	warnStrays(cmd, cmd.ErrOrStderr(), false)
}

// flagFaultOf says what is wrong with a flag, in words that are not the parser's.
func flagFaultOf(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); len(words) > 0 && cmd.HasAvailableSubCommands() {
		return unknownCommand(cmd, words[0]) // whose flag it would be
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(cmd, unknown)
	}
	return flagFault(err)
}
