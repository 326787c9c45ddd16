package main

import (
	"log"
	"strings"
	"testing"
)

// TestTablesAreSafeOnATerminal: what a Node or a client chose can neither move the cursor nor forge a row.
func TestTablesAreSafeOnATerminal(t *testing.T) {
	var out strings.Builder
	if err := printTable(&out, "NAME MODEL", [][]string{{"a", "x\x1b[2J\u009b0m\u202e\nforged  row"}, {"b", ""}}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 3 || !strings.HasSuffix(lines[2], "-") {
		t.Errorf("%q", out.String())
	}
	if strings.ContainsAny(out.String(), "\x1b\u009b\u202e") {
		t.Errorf("%q", out.String())
	}
}

func TestNoAnswerInTheLog(t *testing.T) {
	var out strings.Builder
	logger := log.New(withoutAnswers{&out}, "", 0)
	logger.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=<nil>", "a secret answer")
	logger.Print("http: panic serving")
	if got := out.String(); got != "http: panic serving\n" {
		t.Errorf("%q", got)
	}
}
