package state

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"iop/execution"
)

// runChild is the main function of a child process.
func runChild(mode, url string) error {
	ctx := context.Background()
	s, err := Open(ctx, url)
	if err != nil {
		return err
	}
	defer s.Close()
	switch mode {
	case "generations": // until killed
		for {
			next, err := s.NextGeneration(ctx, "node", 0)
			if err != nil {
				return err
			}
			fmt.Println(next)
		}
	case "usage": // until killed
		first, err := strconv.Atoi(os.Getenv("IOP_STATE_TEST_FIRST"))
		if err != nil {
			return err
		}
		for n := first; ; n += killedBatch {
			if err := s.AddUsage(ctx, killedRuns(n, killedBatch)); err != nil {
				return err
			}
			next, err := s.NextGeneration(ctx, "node", 0)
			if err != nil {
				return err
			}
			fmt.Println(n+killedBatch, next)
		}
	case "first-start": // all that happens once for a new state
		admin, _, err := s.AdminToken(ctx)
		if err != nil {
			return err
		}
		_, key, err := s.CreateKey(ctx, KeySpec{Name: fmt.Sprint("child ", os.Getpid())})
		if err != nil {
			return err
		}
		next, err := s.NextGeneration(ctx, "node", 0)
		fmt.Println(admin.Reveal(), key.Reveal(), next)
		return err
	case "slots": // until killed
		return changeSlots(ctx, s)
	case "revoke":
		return s.RevokeKey(ctx, KeyID(os.Getenv("IOP_STATE_TEST_KEY")), "the other process")
	}
	return fmt.Errorf("no mode %q", mode)
}

func child(mode, url string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childMode+"="+mode, "IOP_STATE_TEST_URL="+url)
	cmd.Stderr = os.Stderr
	return cmd
}

// A process that takes generations is killed at whatever point it has reached, over and over. What it had printed was
// returned to it, so it must not come back.
func TestGenerationsSurviveKill(t *testing.T) {
	const rounds = 20
	url := fileURL(t)
	last := execution.Generation(0)
	for round := range rounds {
		cmd := child("generations", url)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		taken := 0
		for lines := bufio.NewScanner(out); lines.Scan(); taken++ {
			number, err := strconv.ParseUint(lines.Text(), 10, 64)
			if err != nil { // the kill cut the line, so nothing is known of the number
				break
			}
			if next := execution.Generation(number); next <= last {
				t.Errorf("round %d: generation %d after %d", round, next, last)
			} else {
				last = next
			}
			if taken == round { // each round a little later; what follows is still read
				cmd.Process.Kill()
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("round %d: the child ended by itself: %v", round, err)
		}
		if taken <= round {
			t.Fatalf("round %d: only %d generations were taken", round, taken)
		}
	}
	s := openURL(t, url)
	next, err := s.NextGeneration(t.Context(), "node", 0)
	if err != nil || next <= last {
		t.Errorf("after all: generation %d, %v; want more than %d", next, err, last)
	}
}

// killedBatch is how many runs a child writes at once, enough for the kill to meet it in the middle of a transaction.
const killedBatch = 50

// killedRuns are n runs of one key and month, numbered from first on.
func killedRuns(first, n int) []UsageRecord {
	records := make([]UsageRecord, n)
	for i := range records {
		records[i] = used(first+i, time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC))
	}
	return records
}

// A process that writes usage is killed at whatever point it has reached, over and over: the state opens, keys are
// good, generations go on, what was written is there, and the month's sum is that of the rows.
func TestUsageSurvivesKill(t *testing.T) {
	const rounds = 15
	url := fileURL(t)
	first, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	_, presented := createKey(t, first, KeySpec{Name: "k"})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, written, generation := 0, 0, execution.Generation(0)
	for round := range rounds {
		cmd := child("usage", url)
		cmd.Env = append(cmd.Env, fmt.Sprint("IOP_STATE_TEST_FIRST=", next))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		took := 0
		for lines := bufio.NewScanner(out); lines.Scan(); took++ {
			var end int
			var got execution.Generation
			if _, err := fmt.Sscan(lines.Text(), &end, &got); err != nil {
				break // the kill cut the line
			}
			if got <= generation {
				t.Errorf("round %d: generation %d after %d", round, got, generation)
			}
			written, next, generation = written+killedBatch, end, got
			if took == round {
				cmd.Process.Kill()
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("round %d: the child ended by itself: %v", round, err)
		}
		next += 2 * killedBatch // past what it may have begun
		s, err := Open(t.Context(), url)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if _, err := s.VerifyKey(t.Context(), presented); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		row := total(t, s)
		if row.Runs < int64(written) || row.Runs%killedBatch != 0 {
			t.Errorf("round %d: %d runs are there, %d were written", round, row.Runs, written)
		}
		if sum := monthTokens(t, s, "key00001", time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)); sum != row.Input+row.Output {
			t.Errorf("round %d: the month has %d tokens, its rows %d", round, sum, row.Input+row.Output)
		}
		written = int(row.Runs)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Several processes meet at a state that does not exist yet: one schema, one pepper, one admin token.
func TestFirstStartOfManyProcesses(t *testing.T) {
	const processes = 6
	url := fileURL(t)
	outputs := make([]strings.Builder, processes)
	children := make([]*exec.Cmd, processes)
	for i := range children {
		children[i] = child("first-start", url)
		children[i].Stdout = &outputs[i]
		if err := children[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, cmd := range children {
		if err := cmd.Wait(); err != nil {
			t.Errorf("child: %v", err)
		}
	}
	s := openURL(t, url)
	admin, created, err := s.AdminToken(t.Context())
	if err != nil || created {
		t.Fatalf("AdminToken: created %v, %v", created, err)
	}
	seen := make(map[string]bool)
	for i := range outputs {
		var token, key, generation string
		if _, err := fmt.Sscan(outputs[i].String(), &token, &key, &generation); err != nil {
			t.Fatal(err)
		}
		if token != admin.Reveal() {
			t.Errorf("process %d has another admin token", i)
		}
		if _, err := s.VerifyKey(t.Context(), key); err != nil {
			t.Errorf("the key of process %d: %v", i, err)
		}
		if seen[generation] {
			t.Errorf("generation %s was given twice", generation)
		}
		seen[generation] = true
	}
}

func TestRevokedByAnotherProcess(t *testing.T) {
	url := fileURL(t)
	s := openURL(t, url)
	key, presented := createKey(t, s, KeySpec{Name: "k"})
	cmd := child("revoke", url)
	cmd.Env = append(cmd.Env, "IOP_STATE_TEST_KEY="+string(key.ID))
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.VerifyKey(t.Context(), presented); invalidReason(err) != InvalidRevoked {
		t.Errorf("after the revocation by another process: %v", err)
	}
}
