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
	case "first-start": // all that happens once for a new state
		admin, _, err := s.AdminToken(ctx)
		if err != nil {
			return err
		}
		_, key, err := s.CreateKey(ctx, KeySpec{Name: "child"})
		if err != nil {
			return err
		}
		next, err := s.NextGeneration(ctx, "node", 0)
		fmt.Println(admin.Reveal(), key.Reveal(), next)
		return err
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
