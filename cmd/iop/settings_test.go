package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// canary is a value that no message may repeat.
const canary = "njt-canary-5f0e"

type testConfig struct {
	Listen    string        `env:"LISTEN" help:"where to listen" example:"127.0.0.1:1"`
	Slots     int           `env:"SLOTS" min:"0" max:"1000000" example:"4"`
	Wait      time.Duration `env:"WAIT" min:"0s" max:"24h" example:"30s"`
	Loud      bool          `env:"LOUD"`
	Names     []string      `env:"NAMES" flag:"name"`
	Providers specList      `env:"PROVIDERS" flag:"provider"`
	Token     string        `env:"TOKEN" secret:"true"`
	Untouched string
}

// parse runs a command that has testConfig as its settings.
func parse(t *testing.T, args ...string) (testConfig, *settings, string, error) {
	t.Helper()
	config := testConfig{Listen: ":1", Slots: 2, Untouched: "as it was"}
	cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true}
	s := bindSettings(cmd, "IOP_TEST_", &config, nil)
	cmd.RunE = func(*cobra.Command, []string) error { return s.load() }
	cmd.SetArgs(args)
	cmd.SetOut(io.Discard)
	err := cmd.Execute()
	return config, s, cmd.UsageString(), err
}

func TestSettingsPrecedence(t *testing.T) {
	t.Setenv("IOP_TEST_SLOTS", "3")
	t.Setenv("IOP_TEST_WAIT", "5s")
	t.Setenv("IOP_TEST_NAMES", "a,b")
	t.Setenv("IOP_TEST_PROVIDERS", "p=http://x,capacity=1  q=http://y")
	config, _, _, err := parse(t, "--wait", "7s", "--loud")
	if err != nil {
		t.Fatal(err)
	}
	if config.Listen != ":1" || config.Slots != 3 || config.Wait != 7*time.Second || !config.Loud || config.Untouched != "as it was" {
		t.Errorf("got %+v: want the default, the variable, the flag, the flag", config)
	}
	if !slices.Equal(config.Names, []string{"a", "b"}) {
		t.Errorf("names = %q", config.Names)
	}
	if !slices.Equal(config.Providers, specList{"p=http://x,capacity=1", "q=http://y"}) {
		t.Errorf("providers = %q", config.Providers)
	}

	config, _, _, err = parse(t, "--provider", "r=http://z,models=m|n", "--provider", "s=http://w", "--name", "c")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.Providers, specList{"r=http://z,models=m|n", "s=http://w"}) || !slices.Equal(config.Names, []string{"c"}) {
		t.Errorf("flags must replace the variable: %q, %q", config.Providers, config.Names)
	}
}

func TestSettingsSecretFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("  "+canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("IOP_TEST_TOKEN_FILE", file)
	config, s, _, err := parse(t)
	if err != nil || config.Token != canary || !s.given("TOKEN") {
		t.Errorf("token = %q, %v; want the file's content, trimmed", config.Token, err)
	}
	// A flag beats both forms of the variable.
	config, _, _, err = parse(t, "--token", "other")
	if err != nil || config.Token != "other" {
		t.Errorf("token = %q, %v; want the flag's", config.Token, err)
	}
	t.Setenv("IOP_TEST_TOKEN_FILE", "")
	config, _, _, err = parse(t, "--token-file", file)
	if err != nil || config.Token != canary {
		t.Errorf("token = %q, %v; want the content of the flag's file", config.Token, err)
	}
}

func TestSettingsFaults(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		env      map[string]string
		args     []string
		variable string
		want     string
	}{
		{"number", map[string]string{"SLOTS": canary}, nil, "IOP_TEST_SLOTS (--slots)", "for example IOP_TEST_SLOTS=4"},
		{"duration", nil, []string{"--wait", canary}, "IOP_TEST_WAIT (--wait)", "a duration with a unit"},
		{"duration without unit", nil, []string{"--wait", "5"}, "IOP_TEST_WAIT", "a duration with a unit"},
		{"bool", map[string]string{"LOUD": canary}, nil, "IOP_TEST_LOUD", "true or false"},
		{"two forms", map[string]string{"TOKEN": canary, "TOKEN_FILE": empty}, nil, "IOP_TEST_TOKEN", "give only one"},
		{"empty file", map[string]string{"TOKEN_FILE": empty}, nil, "IOP_TEST_TOKEN_FILE (--token-file)", "is empty"},
		{"no file", nil, []string{"--token-file", empty + "x"}, "IOP_TEST_TOKEN_FILE", "no such file"},
		{"directory", nil, []string{"--token-file", filepath.Dir(empty)}, "IOP_TEST_TOKEN_FILE", "directory"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for name, value := range test.env {
				t.Setenv("IOP_TEST_"+name, value)
			}
			_, _, _, err := parse(t, test.args...)
			if err == nil {
				t.Fatal("no error")
			}
			message := err.Error()
			if !strings.HasPrefix(message, test.variable) || !strings.Contains(message, test.want) {
				t.Errorf("message %q: want it to begin with %q and to say %q", message, test.variable, test.want)
			}
			if strings.Contains(message, canary) || strings.Contains(message, "\n") {
				t.Errorf("message %q: want one line, without the value", message)
			}
			if _, ok := err.(usageError); !ok {
				t.Errorf("a wrong setting is wrong use, not %T", err)
			}
		})
	}
}

func TestSettingsHelp(t *testing.T) {
	t.Setenv("IOP_TEST_TOKEN", canary)
	_, _, usage, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"IOP_TEST_LISTEN", "--listen", "where to listen", `(default ":1")`, "--token-file"} {
		if !strings.Contains(usage, want) {
			t.Errorf("the help lacks %q:\n%s", want, usage)
		}
	}
	if strings.Contains(usage, canary) {
		t.Errorf("the help shows a secret:\n%s", usage)
	}
}
